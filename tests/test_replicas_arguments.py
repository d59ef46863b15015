"""What replicas refuse, at once and by name; and the settings they take in several forms."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.optim.noisy_adam import NoisyAdamRule
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.train.replicas import ReplicaPredictive, Replicas
from bayesrule.train.replicas_step import Noise
from replica_problems import problem

NAN = float("nan")


def made(**changes: Any) -> Replicas:
    """Past the checks of types under test, which would refuse some of it first."""
    x, y = problem()
    options = {"x": x, "y": y, "rule": NoisyKFACRule(), "hidden": (4,), "seeds": range(2), **changes}
    replicas = object.__new__(Replicas)
    inspect.unwrap(Replicas.__init__)(replicas, **options)
    return replicas


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1.0}, r"lr must be finite and not negative. Got: -1.0"),
        ({"lr": NAN}, r"lr must be finite and not negative. Got: nan"),
        ({"lr": [0.1, -0.5]}, r"lr must be .* Got: -0.5, in replicas \[1\]\."),
        ({"lr": torch.tensor([NAN, -0.5])}, r"lr must be .* Got: nan, in replicas \[0, 1\]\."),
        ({"lr": "fast"}, "lr is one number, or one for each of 2 replicas. Got: 'fast'"),
        ({"lr": None}, "lr is one number, or one for each of 2 replicas. Got: None"),
        ({"prior_std": -1.0}, "prior_std must be finite and positive"),
        ({"prior_std": 0}, "prior_std must be finite and positive"),
        ({"prior_std": float("inf")}, "prior_std must be finite and positive"),
        ({"kl_weight": -1}, "kl_weight must be finite and positive"),
        ({"kl_weight": 0.0}, "kl_weight must be finite and positive"),
        ({"noise_prior": (-6.0, 6.0)}, "shape of noise_prior must be finite and positive"),
        ({"noise_prior": (6.0, [6.0, 0.0])}, r"rate of noise_prior must be .* in replicas \[1\]"),
        ({"noise_prior": 6.0}, "noise_prior is a pair"),
        ({"noise_prior": (6.0,)}, "noise_prior is a pair"),
        ({"noise_lr": -0.1}, r"noise_lr, .* lies in \[0, 1\]"),
        ({"noise_lr": 2}, r"noise_lr, .* lies in \[0, 1\]"),
        ({"noise_lr": torch.ones(2)}, r"noise_lr, .* lies in \[0, 1\]"),
        ({"batch_size": 0}, "batch_size is a whole number from 1 on. Got: 0"),
        ({"batch_size": -3}, "batch_size is a whole number from 1 on. Got: -3"),
        ({"batch_size": 2.5}, "batch_size is a whole number from 1 on. Got: 2.5"),
        ({"T_inv": 0}, "T_inv is a whole number from 1 on"),
        ({"T_stats": 0}, "T_stats is a whole number from 1 on"),
        ({"quiet_steps": -1}, "quiet_steps is a whole number from 0 on"),
        ({"start": "xavier"}, "start is one of 'linear', 'he'. Got: 'xavier'"),
        ({"x": torch.ones(2, 37, 3, dtype=torch.int64)}, r"x must be in single or double precision. .* x.float\(\)"),
        (
            {"x": torch.ones(2, 37, 3, dtype=torch.float16)},
            "double precision. Got: torch.float16",
        ),
    ],
)
def test_numbers_are_refused_at_the_start(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        made(**changes)


@pytest.mark.parametrize("name", ["x", "y"])
def test_data_far_from_standardised_are_warned_about(name: str) -> None:
    x, y = problem()
    far = {"x": x, "y": y} | {name: {"x": x, "y": y}[name] + 100}
    with pytest.warns(UserWarning, match=f"{name} has a column of size 100"):
        made(**far)


@pytest.mark.parametrize("value", [NAN, float("inf")])
@pytest.mark.parametrize("name", ["x", "y"])
def test_data_must_be_finite(name: str, value: float) -> None:
    x, y = problem()
    {"x": x, "y": y}[name][1, [4, 5], 0] = value
    with pytest.raises(
        InvalidArgument, match=rf"{name} must be finite. Got: 2 entries that are not, in replicas \[1\]"
    ):
        made(x=x, y=y)


@pytest.mark.parametrize("shape", [(0, 37), (2, 0)])
def test_there_must_be_data(shape: tuple[int, int]) -> None:
    with pytest.raises(ShapeMismatch, match="nothing to train on"):
        made(x=torch.ones(*shape, 3), y=torch.ones(*shape, 1), seeds=range(shape[0]))


def test_settings_have_one_number_or_one_for_each() -> None:
    for value in ([0.1, 0.2, 0.3], torch.ones(1, 2)):
        with pytest.raises(ShapeMismatch, match="one for each of 2 replicas"):
            made(lr=value)


@pytest.mark.parametrize("form", [list, torch.tensor, lambda pair: torch.tensor(pair, dtype=torch.float32)])
def test_settings_may_be_tensors(form: Any) -> None:
    """Numbers that float32 has too."""
    pairs = {"lr": [0.0, 0.5], "kl_weight": [1.0, 0.5], "prior_std": [0.25, 1.5]}
    plain = made(**pairs, noise_prior=([2.0, 4.0], 0.5))
    other = made(**{name: form(pair) for name, pair in pairs.items()}, noise_prior=(form([2.0, 4.0]), form([0.5])))
    for one, two in (
        (plain.lr, other.lr),
        (plain.prior_std, other.prior_std),
        (plain.program.scale, other.program.scale),
    ):
        assert one.dtype == two.dtype == torch.float64
        assert one.flatten().tolist() == two.flatten().tolist()
    assert plain.lr.flatten().tolist() == pairs["lr"]
    assert other.program.noise_prior.precision.flatten().tolist() == [4.0, 8.0]


def test_a_step_size_of_zero_leaves_the_means() -> None:
    replicas = made(lr=[0.0, 0.01])
    before = [mean.clone() for mean in replicas.state.means]
    replicas.train(1)
    assert all(torch.equal(mean[0], old[0]) for mean, old in zip(replicas.state.means, before, strict=True))
    assert not any(torch.equal(mean[1], old[1]) for mean, old in zip(replicas.state.means, before, strict=True))


@pytest.mark.parametrize(
    ("epochs", "factor", "message"),
    [
        (-1, 1.0, "epochs is a whole number from 0 on. Got: -1"),
        (1.5, 1.0, "epochs is a whole number from 0 on. Got: 1.5"),
        (1, -1, "lr_factor must be finite and not negative. Got: -1.0"),
        (1, NAN, "lr_factor must be finite and not negative"),
        (1, [1.0, NAN], r"lr_factor must be .* in replicas \[1\]"),
    ],
)
def test_training_refuses(epochs: Any, factor: Any, message: str) -> None:
    replicas = made()
    with pytest.raises(InvalidArgument, match=message):
        inspect.unwrap(Replicas.train)(replicas, epochs, lr_factor=factor)
    assert replicas.epochs == replicas.state.steps == 0


def test_factors_are_each_replicas_own() -> None:
    x, y = problem()
    together = made(x=x, y=y, lr=0.02)
    together.train(2, lr_factor=[1.0, 0.5])
    apart = made(x=x, y=y, lr=[0.02, 0.01])
    apart.train(2)
    for one, other in zip(together.state.means, apart.state.means, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=0)


def test_targets_get_the_type_of_the_inputs() -> None:
    x, y = problem()
    mixed, plain = made(x=x.float(), y=y), made(x=x.float(), y=y.float())
    for each in (mixed, plain):
        each.train(1)
    assert all(torch.equal(one, other) for one, other in zip(mixed.state.means, plain.state.means, strict=True))


def test_predictions_are_at_each_replicas_own_rows() -> None:
    replicas, (x, y) = made(), problem()
    replicas.train(1)
    for wrong in (x[:1], x[0], x.repeat(2, 1, 1), x[..., :2]):
        with pytest.raises(ShapeMismatch, match=r"Inputs are \(2, rows, 3\)"):
            inspect.unwrap(Replicas.predict)(replicas, wrong)
    with pytest.raises(ShapeMismatch, match=r"x.expand\(2, -1, -1\)"):
        replicas.predict(x[:1])
    for gap in (math.nan, math.inf):
        broken = x.clone()
        broken[1, 0, 2] = gap
        with pytest.raises(InvalidArgument, match=r"x must be finite. Got: 1 entries that are not, in replicas \[1\]"):
            replicas.predict(broken, samples=3)
    with pytest.raises(InvalidArgument, match="samples is a whole number from 1 on"):
        replicas.predict(x, samples=0)
    predicted = replicas.predict(x[:1].expand(2, -1, -1), samples=3)
    for score in (ReplicaPredictive.rmse, ReplicaPredictive.log_likelihood):
        for wrong in (y[:1], y[..., 0], y.transpose(0, 1)):
            with pytest.raises(ShapeMismatch, match=r"Targets are \(2, 37, 1\)"):
                inspect.unwrap(score)(predicted, wrong)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_spreads_are_those_of_each_alone(dtype: torch.dtype) -> None:
    outputs = torch.randn(9, 3, 5, 2, dtype=dtype)
    shape, rate = (torch.rand(3, 1, 1, dtype=dtype) + 0.5 for _ in range(2))
    predicted = ReplicaPredictive(outputs, Noise(shape, rate))
    tolerance = {"rtol": 1e-12 if dtype == torch.float64 else 1e-5, "atol": 0}
    for number in range(3):
        alone = predicted.of(number)
        torch.testing.assert_close(predicted.mean[number], alone.mean, rtol=tolerance["rtol"], atol=1e-6)
        torch.testing.assert_close(predicted.epistemic_std[number], alone.epistemic_std, **tolerance)
        torch.testing.assert_close(predicted.std[number], alone.std, **tolerance)
    with pytest.raises(InvalidArgument, match=r"There are 3 replicas, the first is 0. Got: 3"):
        predicted.of(3)


def test_divergence_is_told() -> None:
    with pytest.raises(InvalidArgument, match=r"Replicas diverged. Got: seeds \[7\]"):
        made(rule=NoisyAdamRule(max_kl=None), seeds=[5, 7], lr=[0.01, 1e200]).train(5)
