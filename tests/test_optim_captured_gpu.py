"""Whole recorded steps of posterior optimizers on a GPU: graphs in place of tapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.optim import capture
from optim_on_gpu import CAPTURED, all_values, digits, network, perceptron, run

pytestmark = pytest.mark.gpu
RECORDED = [*CAPTURED, "NoisyFull", "OGN", "BayesBiNN"]


@pytest.mark.parametrize("name", RECORDED)
def test_whole_recorded_steps_are_those_done_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, with dropout by torch's generator, batches of two sizes, and steps in parts between them."""

    def trained() -> tuple[list[float], list[torch.Tensor]]:
        optimizer = perceptron(name, True, **({} if name in ("OGN", "BayesBiNN") else {"mirrored": True}))
        step = optimizer.captured(lambda x, y: F.cross_entropy(optimizer.model(F.dropout(x, 0.2)), y))
        torch.manual_seed(3)
        x, y = digits()
        found = [step(x[:rows].double(), y[:rows]).item() for rows in (len(x), 50) * 16]
        return found, [*all_values(optimizer), *(p.grad for p in optimizer.model.parameters())]

    found, values = trained()
    again, _ = trained()
    monkeypatch.setattr(capture, "WARM_UP", 10**9)
    want, these = trained()
    assert found == again == want
    assert all(torch.equal(left, right) for left, right in zip(values, these, strict=True))


def test_whole_recorded_steps_of_convolutions_train_in_half_precision() -> None:
    net = network()
    optimizer = br.optim.VOGN(net, n_data=1000, lr=0.02, likelihood=br.Categorical(), seed=1, capturable=True)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(net(x), y)

    step, (x, y) = optimizer.captured(loss), digits()
    losses = [step(x, y).item() for _ in range(60)]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert net[1].num_batches_tracked == 60


def test_a_whole_recorded_step_refuses_what_is_not_finite() -> None:
    optimizer = perceptron("IVON", True)
    step, (x, y) = optimizer.captured(lambda x, y: F.cross_entropy(optimizer.model(x), y)), digits()
    for _ in range(6):
        step(x.double(), y)
    before = all_values(optimizer)
    with pytest.raises(br.errors.InvalidArgument, match="A gradient is not finite"):
        step(x.double() * float("nan"), y)
    assert all(torch.equal(left, right) for left, right in zip(all_values(optimizer), before, strict=True))
    step(x.double(), y)
    assert optimizer.steps == 7


def test_a_loss_that_cannot_be_recorded_is_told_and_other_steps_go_on() -> None:
    optimizer = perceptron("IVON", True)
    x, y = digits()
    step = optimizer.captured(lambda x, y: F.cross_entropy(optimizer.model(x), y) * (1 + 0 * y.sum().item()))
    for _ in range(2):
        step(x.double(), y)
    before = all_values(optimizer)
    with pytest.raises(br.errors.Unsupported, match="This step cannot be recorded"):
        step(x.double(), y)
    assert all(torch.equal(left, right) for left, right in zip(all_values(optimizer), before, strict=True))
    assert all(loss < 10 for loss in run(optimizer, 5))


def test_means_are_back_after_a_loss_that_fails_on_a_stream_of_its_own() -> None:
    optimizer = perceptron("IVON", True)
    before = [p.detach().clone() for p in optimizer.model.parameters()]

    def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(200_000_000)
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.captured(wrong)(*digits())
    after = [p.detach().clone() for p in optimizer.model.parameters()]
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))


def test_hooks_see_gradients_of_whole_recorded_steps() -> None:
    found = []
    for whole in (False, True):
        optimizer = perceptron("IVON", True)
        x, y = digits()
        parameters = list(optimizer.model.parameters())

        def clip(*given: object, all_of: list[nn.Parameter] = parameters) -> None:
            nn.utils.clip_grad_norm_(all_of, 0.1)

        optimizer.register_step_pre_hook(clip)
        step = optimizer.captured(lambda x, y, o=optimizer: F.cross_entropy(o.model(x), y))
        for _ in range(8):
            if whole:
                step(x.double(), y)
                continue
            with optimizer.sampled_params():
                F.cross_entropy(optimizer.model(x.double()), y).backward()
            optimizer.step()
        found.append(all_values(optimizer))
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-12)
