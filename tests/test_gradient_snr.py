"""Signal-to-noise ratios of gradients, against NumPy, and as a watcher of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.train.gradient_snr import GradientSNR, gradient_snr, log_std_gradients
from bayesrule.train.loop import Loop


def test_the_ratios_are_those_of_numpy() -> None:
    gradients = torch.randn(10, 4, 3, dtype=torch.float64) + 0.7
    found = gradient_snr(gradients)
    values = gradients.numpy().reshape(10, -1)
    ratio = (values**2).mean(0) / values.var(0)
    usual = values.mean(0) ** 2 / values.var(0)
    lower_median = np.sort(ratio)[(ratio.size - 1) // 2]
    assert found.mean == pytest.approx(ratio.mean(), rel=1e-12)
    assert found.median == pytest.approx(lower_median, rel=1e-12)
    assert found.ratio_of_sums == pytest.approx((values**2).mean(0).sum() / values.var(0).sum(), rel=1e-12)
    assert found.usual_median == pytest.approx(np.sort(usual)[(usual.size - 1) // 2], rel=1e-10)


def test_the_two_definitions_are_exactly_one_apart() -> None:
    found = gradient_snr(torch.randn(10, 7))
    assert found.median - found.usual_median == 1.0


def test_constant_gradients_have_no_noise_and_absent_ones_no_signal() -> None:
    assert gradient_snr(torch.ones(5, 2)).mean == float("inf")
    assert gradient_snr(torch.tensor([[0.0, 1.0], [0.0, -1.0]])).median == 1.0


@pytest.mark.parametrize("shape", [(1, 3), (5,), (0, 2)])
def test_a_window_needs_two_gradients(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="two or more gradients"):
        gradient_snr(torch.zeros(shape))


def test_steps_must_lie_a_window_after_the_start() -> None:
    with pytest.raises(InvalidArgument, match="a window after"):
        GradientSNR(at=[4], window=5)
    with pytest.raises(InvalidArgument, match="two or more batches"):
        GradientSNR(at=[4], window=1)


@pytest.mark.parametrize("family", [br.Diagonal(), br.KTied(2)], ids=["mean-field", "2-tied"])
def test_a_watcher_sees_the_last_gradients_of_every_matrix(family: br.Diagonal | br.KTied) -> None:
    x, y = torch.randn(32, 4), torch.randn(32, 2)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    seen: list[dict[str, torch.Tensor]] = []

    def keep(loop: Loop) -> None:
        seen.append({name: gradient.clone() for name, gradient in log_std_gradients(loop.bnn).items()})

    snr = GradientSNR(at=[6, 9], window=4)
    br.fit(net, [(x, y)], likelihood=br.Gaussian(0.5), posterior=family, epochs=9, watchers=[keep, snr])
    sizes = {"0.weight": 20, "2.weight": 10} if family == br.Diagonal() else {"0.weight": 18, "2.weight": 14}
    assert {name: gradient.numel() for name, gradient in seen[0].items()} == sizes
    assert sorted(snr.found) == [6, 9]
    for step in (6, 9):
        for name, found in snr.found[step].items():
            window = np.stack([gradients[name].double().numpy() for gradients in seen[step - 4 : step]])
            ratio = (window**2).mean(0) / window.var(0)
            assert found["mean"] == pytest.approx(ratio.mean(), rel=1e-9)
            assert found["median"] == pytest.approx(np.sort(ratio)[(ratio.size - 1) // 2], rel=1e-9)
