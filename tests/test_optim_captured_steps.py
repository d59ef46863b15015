"""Whole recorded steps of posterior optimizers: the numbers of steps that are done one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.optim import capture
from launch_tape import TapeRecorder
from optim_problems import make, network, regression, same, values
from recorded_steps import Optimizer, all_kinds, close, loss_of, one_by_one, pair, run, some, tapes_on_an_accelerator


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[TapeRecorder]:
    return tapes_on_an_accelerator(monkeypatch)


@all_kinds
@pytest.mark.parametrize("mirrored", [False, True], ids=["fresh", "mirrored"])
def test_recorded_steps_are_the_same(kind, mirrored, recorders) -> None:
    plain, captured = pair(kind, mirrored=mirrored, T_stats=5, T_inv=10)
    want = run(plain, one_by_one(plain), 26)
    torch.testing.assert_close(run(captured, captured.captured(loss_of(captured)), 26), want, rtol=1e-11, atol=0)
    close(plain, captured)
    assert sum(each.replayed for each in recorders) > 20


@some
def test_gradients_are_clipped_before_the_step(kind, recorders) -> None:
    plain, captured = pair(kind, T_stats=5, T_inv=10)
    step = captured.captured(loss_of(captured), clip=lambda: clipped(captured))
    x, y = regression()
    for _ in range(12):
        with plain.sampled_params():
            loss_of(plain)(x, y).backward()
        clipped(plain)
        plain.step()
        step(x, y)
    close(plain, captured)


def clipped(optimizer: Optimizer) -> None:
    norm = nn.utils.clip_grad_norm_(optimizer.model.parameters(), 0.05)
    assert norm.grad_fn is None


@some
def test_in_turn_with_steps_in_parts_and_batches_of_other_sizes(kind, recorders) -> None:
    plain, captured = pair(kind, mirrored=True, T_stats=4, T_inv=16)
    whole = captured.captured(loss_of(captured))
    for rows in (8, 5, 8, 5):
        for optimizer, step in ((plain, one_by_one(plain)), (captured, whole)):
            run(optimizer, step, 5, rows)
            run(optimizer, one_by_one(optimizer), 3, rows)
    close(plain, captured)


@some
def test_blocks_before_are_averaged(kind, recorders) -> None:
    plain, captured = pair(kind, T_stats=4, T_inv=16)
    x, y = regression()
    for optimizer, step in ((plain, one_by_one(plain)), (captured, captured.captured(loss_of(captured)))):
        run(optimizer, step, 12)
        for _ in range(3):
            with optimizer.sampled_params():
                loss_of(optimizer)(x, y).backward()
            step(x, y)
    close(plain, captured)


@some
def test_learned_noise_and_priors_are_learned(kind, recorders) -> None:
    if kind is br.optim.BayesBiNN:
        pytest.skip("has a uniform prior")
    laws = {"likelihood": br.likelihoods.GaussianGammaNoise(), "prior": br.priors.LearnedNormal()}
    plain, captured = pair(kind, T_stats=5, T_inv=10, **copy.deepcopy(laws))
    captured = make(kind, network(3, 4, 4, 2), capturable=True, T_stats=5, T_inv=10, **copy.deepcopy(laws))
    want = run(plain, one_by_one(plain), 24)
    torch.testing.assert_close(run(captured, captured.captured(loss_of(captured)), 24), want, rtol=1e-11, atol=0)
    close(plain, captured)


@some
def test_a_loss_that_is_not_finite_changes_nothing(kind, recorders) -> None:
    captured = make(kind, capturable=True, T_stats=16, T_inv=16)
    step = captured.captured(loss_of(captured))
    run(captured, step, 12)
    before, (x, y) = values(captured), regression()
    with pytest.raises(InvalidArgument, match="A gradient is not finite"):
        step(x[:8] * float("nan"), y[:8])
    assert same(values(captured), before)
    assert captured.steps == 12
    run(captured, step, 2)
    assert captured.steps == 14


@some
def test_gradients_are_there_after_a_step_and_its_loss_stays(kind, recorders) -> None:
    plain, captured = pair(kind, T_stats=5, T_inv=10)
    step = captured.captured(loss_of(captured))
    x, y = regression()
    losses = []
    for count in range(12):
        plain_loss = one_by_one(plain)(x[count : count + 4], y[count : count + 4])
        losses.append((plain_loss, step(x[count : count + 4], y[count : count + 4])))
        for left, right in zip(plain.trained.values(), captured.trained.values(), strict=True):
            torch.testing.assert_close(left.grad, right.grad, rtol=1e-10, atol=1e-13)
    for left, right in losses:
        torch.testing.assert_close(left, right, rtol=1e-11, atol=0)


def test_modules_that_change_their_mode_are_heeded(recorders) -> None:
    """Dropout is on and off, and torch's own noise goes on from step to step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    optimizer = br.optim.IVON(net, n_data=50, likelihood=br.Gaussian(0.5), capturable=True, seed=0)
    step, (x, y) = optimizer.captured(loss_of(optimizer)), regression()
    for training in (True, False) * 4:
        net.train(training)
        for _ in range(2):
            step(x, y)
    assert {key[1][0] for key in step._whole._known} == {(True,) * 4, (False,) * 4}


@pytest.mark.parametrize("autocast", [False, True])
def test_precision_of_autocast(autocast, recorders, monkeypatch: pytest.MonkeyPatch) -> None:
    """One region around all steps, in which each draw is cast anew; curvature and updates are in full precision."""
    found = []
    for warm_up in (10**9, capture.WARM_UP):
        monkeypatch.setattr(capture, "WARM_UP", warm_up)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = br.optim.VOGN(net, n_data=50, likelihood=br.Gaussian(0.5), capturable=True, seed=3)
        step = optimizer.captured(loss_of(optimizer))
        x, y = (each.float() for each in regression())
        with torch.autocast("cpu", torch.float16, enabled=autocast):
            losses = [step(x, y) for _ in range(7)]
        found.append([*losses, *optimizer.means().values(), *(q.variance for q in optimizer.posteriors().values())])
    assert len({loss.item() for loss in found[0][:7]}) == 7
    for left, right in zip(*found, strict=True):
        assert torch.equal(left, right)


def test_a_draw_for_each_example(recorders) -> None:
    plain, captured = pair(br.optim.NoisyKFAC, noise="example", T_stats=3, T_inv=12)
    want = run(plain, one_by_one(plain), 20)
    torch.testing.assert_close(run(captured, captured.captured(loss_of(captured)), 20), want, rtol=1e-11, atol=0)
    close(plain, captured)


@all_kinds
@pytest.mark.parametrize("way", [(False, True), (True, False)], ids=["to recorded", "from recorded"])
def test_states_fit_either_way(kind, way, recorders) -> None:
    first, second = (make(kind, network(3, 4, 4, 2), capturable=flag, T_stats=3, T_inv=16) for flag in way)
    steps = [each.captured(loss_of(each)) if flag else one_by_one(each)
             for each, flag in zip((first, second), way, strict=True)]  # fmt: skip
    run(first, steps[0], 7)
    run(second, steps[1], 5)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    want = run(first, steps[0], 8)
    torch.testing.assert_close(run(second, steps[1], 8), want, rtol=1e-10, atol=0)
    close(first, second)
