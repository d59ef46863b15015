"""The trainable home of every family."""

from __future__ import annotations

import pytest
import torch
from examples import families

from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Family, MatrixNormal, Part, Variational

every = pytest.mark.parametrize("family", families(), ids=str)
CONVOLUTION = Part("kernel", MatrixView((4, 2, 3)))


@every
def test_it_keeps_the_mean_in_the_layout_of_the_weight(family: Family) -> None:
    weight = torch.randn(4, 2, 3, dtype=torch.float64)
    home = Variational(family, weight, (CONVOLUTION,))
    posterior = home()
    assert torch.equal(home.mean, weight)
    assert home.mean.data_ptr() != weight.data_ptr()
    assert torch.equal(posterior.mean, weight.flatten(1).T)
    assert posterior.mean.data_ptr() == home.mean.data_ptr()
    assert torch.equal(posterior.split(posterior.mean)["kernel"], weight)


@every
def test_a_draw_trains_every_parameter(family: Family) -> None:
    home = Variational(family, torch.randn(4, 2, 3, dtype=torch.float64), (CONVOLUTION,))
    draw = home().split(home().rsample())["kernel"]
    draw.square().sum().backward()
    for name, parameter in home.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@every
def test_the_state_carries_the_posterior(family: Family) -> None:
    weight = torch.randn(4, 2, 3, dtype=torch.float64)
    home, other = (Variational(family, mean, (CONVOLUTION,)) for mean in (weight, torch.zeros_like(weight)))
    other.load_state_dict(home.state_dict())
    assert torch.equal(home().mean, other().mean)
    assert torch.equal(home().variance, other().variance)


@every
def test_the_start_repeats_with_the_generator(family: Family) -> None:
    weight = torch.randn(4, 2, 3, dtype=torch.float64)
    first, again = (
        Variational(family, weight, (CONVOLUTION,), generator=torch.Generator().manual_seed(3)) for _ in range(2)
    )
    for one, two in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("family", [each for each in families() if "init_std" in vars(each)], ids=str)
def test_the_start_has_the_standard_deviations_asked_for(family: Family) -> None:
    """On average over entries; the families that start at random do so within a tenth."""
    posterior = Variational(family, torch.zeros(40, 30, dtype=torch.float64))()
    assert posterior.stddev.mean().item() == pytest.approx(family.init_std, rel=0.1)
    assert torch.equal(posterior.mean, torch.zeros(40, 30, dtype=torch.float64))


def test_the_mean_of_a_group_is_kept_as_the_event() -> None:
    parts = (Part("weight", MatrixView((3, 4))), Part("bias", (3,)))
    event = torch.randn(5, 3, dtype=torch.float64)
    home = Variational(MatrixNormal(), event, parts)
    assert torch.equal(home.mean, event)
    pieces = home().split(home().mean)
    assert torch.equal(pieces["weight"], event[:4].T)
    assert torch.equal(pieces["bias"], event[4])
    assert home.name == "weight"
    assert "weight, bias: MatrixNormal" in repr(home)
