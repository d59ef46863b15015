"""Replicas on a CUDA device: their noise, and steps that write over their state, as graphs and without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bayesrule.optim.buffers import leaves
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.train import Captured, replicas_captured
from bayesrule.train.replicas import Replicas
from bayesrule.train.replicas_backprop import BayesByBackpropRule
from bayesrule.train.replicas_noise import DeviceStream, Stream
from replica_problems import BATCH, KINDS, ROWS, SETTINGS, problem, trained


class Recorded(Captured):
    """In place of a graph: the function it would record, which gets its batch in the same buffers every time."""

    def __init__(self, function: Any, device: torch.device) -> None:
        self.function, self.buffers = function, {}

    def __call__(self, *batch: Tensor) -> tuple[Tensor, ...]:
        static = self.buffers.setdefault(batch[0].shape, [tensor.clone() for tensor in batch])
        for old, new in zip(static, batch, strict=True):
            old.copy_(new)
        return self.function(*static)


def same_states(one: Replicas, other: Replicas, **tolerance: float) -> None:
    pairs = zip(*(leaves((r.state.means, r.state.noise)) for r in (one, other)), strict=True)
    for left, right in pairs:
        torch.testing.assert_close(left, right, **tolerance)
    assert one.state.steps == other.state.steps
    torch.testing.assert_close(one.limited, other.limited)
    torch.testing.assert_close(one.kl(), other.kl(), **tolerance)


@pytest.mark.parametrize("name", [*KINDS, "bbb"])
def test_steps_in_place_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a graph replays, on a CPU: counts as tensors, and results written over the state."""
    monkeypatch.setattr(replicas_captured, "Captured", Recorded)
    rule = BayesByBackpropRule() if name == "bbb" else KINDS[name][0]
    x, y = problem()
    plain, captured = (trained(rule, x, y, epochs=8, capture=capture) for capture in (False, True))
    same_states(plain, captured, rtol=1e-9, atol=1e-11)
    before = [leaf.data_ptr() for leaf in leaves(captured.state)]
    captured.train(1)
    assert [leaf.data_ptr() for leaf in leaves(captured.state)] == before


def test_a_device_draws_for_each_replica_alone() -> None:
    x, y = problem()
    together = DeviceStream(x, y, (3, 5), BATCH, 20)
    alone = DeviceStream(x[1:], y[1:], (5,), BATCH, 20)
    for one, other in zip(together._block(2), alone._block(2), strict=True):
        torch.testing.assert_close(one[1:], other, rtol=0, atol=0)
    orders, weights, targets = together._block(0)
    assert torch.equal(orders.sort(-1).values, torch.arange(ROWS).expand_as(orders))
    assert weights.shape == (2, together.together, 4, 20)
    assert targets.shape == (2, together.together, ROWS, 1)
    statistic = weights.square().sum().double()
    assert abs(statistic - weights.numel()) < 5 * (2 * weights.numel()) ** 0.5  # beyond it once in 1.7 million
    assert not torch.equal(weights, together._block(1)[1])


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*KINDS, "bbb"])
def test_graphs_replay_the_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = BayesByBackpropRule() if name == "bbb" else KINDS[name][0]
    x, y = (each.cuda() for each in problem())
    replayed = trained(rule, x, y, epochs=8)
    monkeypatch.setattr(replicas_captured, "Captured", Recorded)
    same_states(trained(rule, x, y, epochs=8), replayed, rtol=1e-11, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adam", "kfac", "kfac momentum", "full", "bbb"])
def test_graphs_equal_eager_steps(name: str) -> None:
    rule = BayesByBackpropRule() if name == "bbb" else KINDS[name][0]
    x, y = (each.cuda() for each in problem())
    plain, captured = (trained(rule, x, y, epochs=8, capture=capture) for capture in (False, True))
    same_states(plain, captured, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(plain.predict(x, 3).outputs, captured.predict(x, 3).outputs, rtol=1e-8, atol=1e-10)


@pytest.mark.gpu
def test_a_gpu_computes_as_the_cpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noise of the CPU."""
    block = Stream._block
    monkeypatch.setattr(DeviceStream, "_block", block)
    monkeypatch.setattr(DeviceStream, "steps_together", Stream.steps_together)
    x, y = problem()
    rule = NoisyKFACRule(beta=0.05)
    here, there = trained(rule, x, y), trained(rule, x.cuda(), y.cuda())
    for one, other in zip(here.state.means, there.state.means, strict=True):
        torch.testing.assert_close(one, other.cpu(), rtol=1e-8, atol=1e-9)


@pytest.mark.gpu
def test_company_changes_nothing_on_a_gpu() -> None:
    x, y = (each.cuda() for each in problem())
    together = trained(NoisyKFACRule(), x, y)
    settings = {key: values[1] for key, values in SETTINGS.items()}
    alone = trained(NoisyKFACRule(), x[1:], y[1:], seeds=[1], **settings)
    for one, other in zip(together.state.means, alone.state.means, strict=True):
        torch.testing.assert_close(one[1:], other, rtol=1e-8, atol=1e-9)
