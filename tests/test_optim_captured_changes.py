"""What may change between whole recorded steps, what may go wrong in them, and what is left of it."""

from __future__ import annotations

import copy
import gc
import weakref
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim import capture
from launch_tape import TapeRecorder
from optim_problems import make, network, regression, same, values
from recorded_steps import (
    Optimizer,
    close,
    loss_of,
    one_by_one,
    pair,
    run,
    some,
    tapes_on_an_accelerator,
    two_headed,
)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[TapeRecorder]:
    return tapes_on_an_accelerator(monkeypatch)


@pytest.mark.parametrize("kind", [br.optim.NoisyKFAC, br.optim.OGN, br.optim.VOGN, br.optim.IVON])
def test_a_layer_that_is_not_called_has_no_curvature(kind, recorders) -> None:
    plain, captured = (two_headed(kind, flag) for flag in (False, True))
    want = run(plain, one_by_one(plain), 12)
    torch.testing.assert_close(run(captured, captured.captured(loss_of(captured)), 12), want, rtol=1e-10, atol=0)
    close(plain, captured)


@pytest.mark.parametrize("kind", [br.optim.OGN, br.optim.VOGN])
def test_refusals_before_the_first_step_do_not_count(kind, recorders) -> None:
    plain, captured = (two_headed(kind, flag) for flag in (False, True))
    step, (x, y) = captured.captured(loss_of(captured)), regression()
    for _ in range(4):
        for each in (one_by_one(plain), step):
            with pytest.raises(InvalidArgument, match="not finite"):
                each(x * float("nan"), y)
    want = run(plain, one_by_one(plain), 8)
    torch.testing.assert_close(run(captured, step, 8), want, rtol=1e-10, atol=0)


@pytest.mark.parametrize("replaced", [False, True])
@some
def test_hooks_see_gradients_before_the_update(kind, replaced, recorders) -> None:
    plain, captured = pair(kind, T_stats=5, T_inv=10)
    for optimizer in (plain, captured):
        parameters = list(optimizer.model.parameters())

        def halve(*given: Any, parameters: list[nn.Parameter] = parameters) -> None:
            for parameter in parameters:
                if replaced:
                    parameter.grad = 0.5 * parameter.grad
                else:
                    parameter.grad.mul_(0.5)

        optimizer.register_step_pre_hook(halve)
    want = run(plain, one_by_one(plain), 14)
    torch.testing.assert_close(run(captured, captured.captured(loss_of(captured)), 14), want, rtol=1e-10, atol=0)
    close(plain, captured)


def test_a_hook_that_raises_leaves_nothing_to_the_next_step(recorders) -> None:
    captured, armed = make(br.optim.IVON, capturable=True), []

    def hook(*given: Any) -> None:
        if armed:
            raise KeyError

    captured.register_step_pre_hook(hook)
    step, (x, y) = captured.captured(loss_of(captured)), regression()
    run(captured, step, 5)
    before = values(captured)
    armed.append(True)
    with pytest.raises(KeyError):
        step(x, y)
    armed.clear()
    assert same(values(captured), before)
    with pytest.raises(InvalidArgument, match="step\\(\\) follows a block"):
        captured.step()


def test_a_draw_that_was_recorded_and_not_made_is_not_mirrored(recorders) -> None:
    captured = make(br.optim.IVON, capturable=True, mirrored=True)
    x, y = regression()
    step = captured.captured(lambda x, y: loss_of(captured)(x, y) * (1 + 0 * y.sum().item()))
    for _ in range(4):
        step(x, y)
    with pytest.raises(Unsupported, match="cannot be recorded"):
        step(x, y)
    mean = captured.model[0].weight.detach().clone()
    with captured.sampled_params():
        drawn = captured.model[0].weight.detach() - mean
        loss_of(captured)(x, y).backward()
    with captured.sampled_params():
        torch.testing.assert_close(captured.model[0].weight.detach() - mean, -drawn)
    std = captured.posteriors()["0.weight"].variance[:-1].sqrt().mT
    assert 0.3 < (drawn / std).square().mean().sqrt() < 3


def test_errors_that_are_the_losss_own_are_left_alone(recorders) -> None:
    """Before a recording, and in one."""
    captured, right = make(br.optim.IVON, capturable=True), []

    def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not right:
            raise ValueError("no image was captured in this batch")
        return loss_of(captured)(x, y)

    step = captured.captured(wrong)
    for good in (False, True, False, True, False, True):
        right[:] = [good] * good
        if good:
            step(*regression())
            continue
        with pytest.raises(ValueError, match="no image"):
            step(*regression())


@pytest.mark.parametrize("T_inv", [1, 16])
def test_buffers_that_are_replaced_and_options_that_change_are_heeded(T_inv, recorders) -> None:
    plain, captured = (two_headed(br.optim.NoisyKFAC, flag, T_stats=2, T_inv=T_inv) for flag in (False, True))
    for optimizer, step in ((plain, one_by_one(plain)), (captured, captured.captured(loss_of(captured)))):
        run(optimizer, step, 9)
        optimizer.model.shift = torch.ones((), dtype=torch.float64)
        run(optimizer, step, 5)
        optimizer.mirrored, optimizer.fisher_samples = True, 3
        run(optimizer, step, 9)
    close(plain, captured)


def test_a_step_size_that_was_a_tensor_for_a_while(recorders) -> None:
    plain, captured = pair(br.optim.VOGN)
    x, y = regression()
    for optimizer, step in ((plain, one_by_one(plain)), (captured, captured.captured(loss_of(captured)))):
        for rate in (0.05, torch.tensor(0.02, dtype=torch.float64), 0.05):
            optimizer.param_groups[0]["lr"] = rate
            for _ in range(4):
                step(x, y)
    close(plain, captured)


def test_recordings_go_with_the_function(recorders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MOST", 4)
    captured = make(br.optim.IVON, capturable=True)
    x, y = regression()
    step = captured.captured(loss_of(captured))
    gone = weakref.ref(step)
    for _ in range(3):
        for rows in range(1, 9):
            step(x[:rows], y[:rows])
    assert len(step._whole._known) == len(step._whole._found) == capture.MOST
    assert len(captured._capture._rooms) < 20
    del step
    gc.collect()
    assert gone() is None


def test_losses_may_differentiate_by_their_inputs(recorders) -> None:
    plain, captured = pair(br.optim.IVON)
    x, y = regression()

    def penalised(optimizer: Optimizer) -> Any:
        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            outputs = optimizer.model(x)
            (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
            return optimizer.nll(outputs, y) + slope.square().mean()

        return loss

    step = captured.captured(penalised(captured))
    for count in range(6):
        inputs = (x + count).requires_grad_()
        with plain.sampled_params():
            penalised(plain)(inputs, y).backward()
        plain.step()
        step(inputs, y)
    close(plain, captured)


def test_a_loss_of_no_weight_is_refused_as_ever(recorders) -> None:
    captured = make(br.optim.IVON, capturable=True)
    free = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with pytest.raises(InvalidArgument, match="no gradient from sampled_params"):
        captured.captured(lambda x, y: free * x.sum())(*regression())


def test_it_says_what_it_needs(recorders) -> None:
    plain, captured = pair(br.optim.IVON)
    with pytest.raises(InvalidArgument, match=r"capturable=True"):
        plain.captured(loss_of(plain))
    step, (x, y) = captured.captured(loss_of(captured)), regression()
    with pytest.raises(InvalidArgument, match="number 1"):
        step(x, y.tolist())
    with pytest.raises(InvalidArgument, match="meta"):
        step(x.to("meta"), y)
    captured.model[0].weight.requires_grad_(False)
    with pytest.raises(InvalidArgument, match=r"0\.weight"):
        step(x, y)


def test_a_loss_that_fails_leaves_the_means(recorders) -> None:
    captured = make(br.optim.IVON, capturable=True)
    before, (x, y) = values(captured), regression()

    def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss_of(captured)(x, y)
        raise KeyError

    for _ in range(4):
        with pytest.raises(KeyError):
            captured.captured(wrong)(x, y)
    assert same(values(captured), before)
    run(captured, captured.captured(loss_of(captured)), 3)


def test_a_loss_that_cannot_be_recorded_is_told(recorders) -> None:
    captured = make(br.optim.IVON, capturable=True)
    x, y = regression()
    step = captured.captured(lambda x, y: loss_of(captured)(x, y) * (1 + 0 * y.sum().item()))
    step(x, y)
    step(x, y)
    before = values(captured)
    for _ in range(2):
        with pytest.raises(Unsupported, match="This step cannot be recorded"):
            step(x, y)
    assert same(values(captured), before)
    run(captured, one_by_one(captured), 5)
    assert captured.steps == 7


def test_a_resumed_run_is_the_same_bit_for_bit(recorders) -> None:
    whole = make(br.optim.IVON, capturable=True, mirrored=True)
    run(whole, whole.captured(loss_of(whole)), 13)
    saved = copy.deepcopy((whole.model.state_dict(), whole.state_dict()))
    want = run(whole, whole.captured(loss_of(whole)), 9)
    resumed = make(br.optim.IVON, network(3, 4, 2, seed=1), seed=9, capturable=True, mirrored=True)
    step = resumed.captured(loss_of(resumed))
    run(resumed, step, 7)
    resumed.model.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert run(resumed, step, 9) == want
    assert same(values(resumed), values(whole))


@pytest.mark.parametrize("kind", [br.optim.IVON, br.optim.VOGN])
def test_each_draw_is_cast_anew_in_a_region_of_autocast_around_many_steps(kind) -> None:
    """Torch keeps what it cast until the region ends, whatever is written to the weights meanwhile; so are means."""

    def outputs(around: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer, found = kind(net, n_data=50, likelihood=br.Gaussian(0.5), seed=3), []
        x, y = (each.float() for each in regression())

        def forward() -> torch.Tensor:
            with torch.autocast("cpu", torch.float16):
                found.append(net(x))
            return found[-1]

        with torch.autocast("cpu", torch.float16, enabled=around):
            for _ in range(3):
                with optimizer.sampled_params():
                    optimizer.nll(forward(), y).backward()
                forward()
                optimizer.step()
                forward()
        return found

    found = outputs(True)
    assert all(torch.equal(left, right) for left, right in zip(found, outputs(False), strict=True))
    assert all(not torch.equal(*neighbours) for neighbours in pairwise(found[2:]))  # VOGN's first draw is the mean
