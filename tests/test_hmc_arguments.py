"""What `hmc` refuses, it refuses before anything is sampled."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.inference.hmc import hmc

ROWS = 9
SHORT = {"chains": 2, "warmup": 5, "draws": 4}


class SamplingError(Exception):
    """Somebody went on to sample."""


@pytest.fixture(autouse=True)
def nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    def packages() -> None:
        raise SamplingError

    monkeypatch.setattr(sys.modules["bayesrule.inference.hmc"], "_packages", packages)


def data(targets: int = 1) -> tuple[Tensor, Tensor]:
    return torch.randn(ROWS, 2, dtype=torch.float64), torch.randn(ROWS, targets, dtype=torch.float64)


@pytest.mark.parametrize("net", [nn.Linear(2, 1), nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))])
def test_what_fits_is_sampled(net: nn.Module) -> None:
    x, y = data()
    for likelihood in (None, br.Gaussian(0.3), br.Gaussian(torch.tensor([0.3]))):
        with pytest.raises(SamplingError):
            hmc(net, x, y, likelihood=likelihood, **SHORT)
    with pytest.raises(SamplingError):
        hmc(net, x.long(), y.float(), **SHORT)


@pytest.mark.parametrize("outputs", [1, 2])
def test_outputs_are_as_many_as_targets(outputs: int) -> None:
    x, y = data(targets=3 - outputs)
    message = rf"outputs of shape \(9, {outputs}\) and targets of shape \(9, {3 - outputs}\)"
    for net in (nn.Linear(2, outputs), nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, outputs))):
        with pytest.raises(ShapeMismatch, match=message):
            hmc(net, x, y, **SHORT)


def test_inputs_are_as_wide_as_the_network() -> None:
    x, y = data()
    with pytest.raises(ShapeMismatch, match=r"takes 3 inputs. Got: 2, from x of shape \(9, 2\)"):
        hmc(nn.Linear(3, 1), x, y, **SHORT)
    with pytest.raises(ShapeMismatch, match=r"layer 2 takes 5 inputs. Got: 4, from the layer 0"):
        hmc(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(5, 1)), x, y, **SHORT)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["x", "y"])
def test_data_are_finite(name: str, value: float) -> None:
    x, y = data()
    {"x": x, "y": y}[name][[3, 7], 0] = value
    with pytest.raises(InvalidArgument, match=rf"{name} must be finite. Got: 2 rows that are not, .* \[3, 7\]"):
        hmc(nn.Linear(2, 1), x, y, **SHORT)


def test_targets_are_columns_of_tensors() -> None:
    x, y = data()
    with pytest.raises(ShapeMismatch, match="unsqueeze"):
        hmc(nn.Linear(2, 1), x, y[:, 0], **SHORT)
    with pytest.raises(ShapeMismatch, match="the same rows"):
        hmc(nn.Linear(2, 1), x, y[1:], **SHORT)
    with pytest.raises(InvalidArgument, match=r"x must be one tensor\. Got: list\. Give torch\.as_tensor"):
        inspect.unwrap(hmc)(nn.Linear(2, 1), x.tolist(), y, **SHORT)  # past the checks of types under test


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup": 0}, "warm-up"),
        ({"warmup": -1}, "warm-up"),
        ({"draws": 3}, "four draws"),
        ({"max_tree_depth": 0}, "at least 1"),
        ({"target_acceptance": 1.5}, "between 0 and 1"),
        ({"chains": 2.5}, "whole number"),
    ],
)
def test_chains_can_be_compared(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        inspect.unwrap(hmc)(nn.Linear(2, 1), *data(), **{**SHORT, **changes})


def test_noise_and_network_fit() -> None:
    with pytest.raises(ShapeMismatch, match="3 of them"):
        hmc(nn.Linear(2, 2), *data(2), likelihood=br.Gaussian(torch.ones(3)), **SHORT)
    with pytest.raises(Unsupported, match="linear layers"):
        hmc(nn.Sequential(nn.ReLU()), *data(2), **SHORT)
