"""Batches of tensors, the constant schedule, and the refusal to capture steps without a CUDA device."""

from __future__ import annotations

import pytest
import torch

import bayesrule as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.train import CapturedStep, TensorBatches
from bayesrule.train.captured import Captured

X, Y = torch.arange(14.0).reshape(7, 2), torch.arange(7)


def test_every_example_comes_once_with_its_target() -> None:
    batches = TensorBatches(X, Y, batch_size=3)
    rows = list(batches)
    assert [len(y) for _, y in rows] == [3, 3, 1]
    assert len(batches) == 3
    assert batches.examples == 7
    assert sorted(torch.cat([y for _, y in rows]).tolist()) == Y.tolist()
    for x, y in rows:
        assert torch.equal(x, X[y])


def test_the_order_is_that_of_torchs_generator_and_new_every_time() -> None:
    torch.manual_seed(3)
    expected = [torch.randperm(7), torch.randperm(7)]
    torch.manual_seed(3)
    batches = TensorBatches(X, Y, batch_size=2)
    found = [torch.cat([y for _, y in batches]) for _ in range(2)]
    assert [order.tolist() for order in found] == [order.tolist() for order in expected]


def test_a_short_last_batch_can_be_left_out() -> None:
    batches = TensorBatches(X, Y, batch_size=3, shuffle=False, drop_last=True)
    assert len(batches) == 2
    assert [y.tolist() for _, y in batches] == [[0, 1, 2], [3, 4, 5]]


def test_several_inputs() -> None:
    ((a, b, y),) = TensorBatches(X, 2 * X, Y, batch_size=7, shuffle=False)
    assert torch.equal(b, 2 * a)
    assert torch.equal(y, Y)


def test_refusals() -> None:
    with pytest.raises(ShapeMismatch, match="one row for each example"):
        TensorBatches(X, Y[:3], batch_size=2)
    with pytest.raises(ShapeMismatch, match="one row for each example"):
        TensorBatches(X, batch_size=2)
    with pytest.raises(InvalidArgument, match="at least 1"):
        TensorBatches(X, Y, batch_size=0)


def fitted(**options: object) -> br.train.Fitted:
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    batches = TensorBatches(x, x.sum(1, keepdim=True), batch_size=10)
    return br.fit(torch.nn.Linear(3, 1), batches, likelihood=br.Gaussian(0.1), epochs=4, lr=0.01, **options)


def test_the_learning_rate_stays_or_follows_a_cosine() -> None:
    assert [epoch.learning_rate for epoch in fitted(schedule="constant").history] == [0.01] * 4
    cosine = [epoch.learning_rate for epoch in fitted().history]
    expected = [0.01 * (1 + torch.cos(torch.tensor(torch.pi * step / 16)).item()) / 2 for step in (4, 8, 12, 16)]
    assert cosine == pytest.approx(expected, abs=1e-8)


def test_watchers_are_called_after_every_step_with_its_gradients() -> None:
    seen: list[tuple[int, bool]] = []
    fitted(watchers=[lambda loop: seen.append((loop.step, all(p.grad is not None for p in loop.bnn.parameters())))])
    assert seen == [(step, True) for step in range(1, 17)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the refusal is for machines without a CUDA device")
def test_steps_are_not_captured_on_a_cpu() -> None:
    with pytest.raises(Unsupported, match="Only steps on a CUDA device"):
        fitted(capture=True)


def test_capture_asks_for_a_device_and_a_capturable_optimizer() -> None:
    with pytest.raises(Unsupported, match="CUDA"):
        Captured(lambda x: (x,), torch.device("cpu"))
    bnn = br.bayesianize(torch.nn.Linear(2, 1), likelihood=br.Gaussian(1.0))
    objective = br.NegativeELBO(bnn, 10)
    with pytest.raises(Unsupported):
        CapturedStep(objective, torch.optim.Adam(bnn.parameters()))
