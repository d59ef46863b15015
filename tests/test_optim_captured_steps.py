"""Whole recorded steps of posterior optimizers: the numbers of steps that are done one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.curvature import fisher
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.likelihoods import support
from bayesrule.optim import capture
from launch_tape import TapeRecorder, tape_recorders
from optim_problems import EVERY, make, network, regression, same, values

all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
SOME = [br.optim.NoisyKFAC, br.optim.NoisyAdam, br.optim.VOGN, br.optim.IVON, br.optim.KTiedVON, br.optim.BayesBiNN]
some = pytest.mark.parametrize("kind", SOME, ids=lambda kind: kind.__name__)
Optimizer = br.optim.PosteriorOptimizer


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[TapeRecorder]:
    for module in (support, fisher):  # whose looks at values are for tensors on a CPU
        monkeypatch.setattr(module, "readable_values", lambda tensor: None)
    return tape_recorders(monkeypatch)


def loss_of(optimizer: Optimizer) -> Any:
    return lambda x, y: optimizer.nll(optimizer.model(x), y)


def one_by_one(optimizer: Optimizer) -> Any:
    """What a recorded step is to do."""

    def step(*batch: torch.Tensor) -> torch.Tensor:
        with optimizer.sampled_params():
            optimizer.zero_grad()
            value = loss_of(optimizer)(*batch)
            value.backward()
        optimizer.step()
        return value.detach()

    return step


def run(optimizer: Optimizer, step: Any, steps: int, rows: int = 8) -> list[float]:
    """Batches that differ, and a step size that decays."""
    x, y = regression()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    found = []
    for count in range(steps):
        chosen = (torch.arange(rows) * 3 + 5 * count) % len(x)
        found.append(step(x[chosen], y[chosen]))
        scheduler.step()
    return [value.item() for value in found]


def pair(kind: type, *widths: int, **options: Any) -> tuple[Optimizer, Optimizer]:
    return tuple(make(kind, network(*(widths or (3, 4, 4, 2))), capturable=flag, **options) for flag in (False, True))


def close(plain: Optimizer, captured: Optimizer) -> None:
    for left, right in zip(values(plain), values(captured), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-13)
    assert plain.limited_steps == captured.limited_steps
    assert plain.steps == captured.steps


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
    modes = [key[3][0] for key in optimizer._capture._known if key[0] == "step"]
    assert {mode[:4] for mode in modes} == {(True,) * 4, (False,) * 4}


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
    """Torch keeps what it cast until the region ends, whatever is written to the weights meanwhile."""
    found = []
    for around in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = kind(net, n_data=50, likelihood=br.Gaussian(0.5), seed=3)
        step, losses = one_by_one(optimizer), []
        x, y = (each.float() for each in regression())
        with torch.autocast("cpu", torch.float16, enabled=around):
            for _ in range(4):
                with torch.autocast("cpu", torch.float16):
                    losses.append(step(x, y).item())
            mean = net(x)
        with torch.autocast("cpu", torch.float16):
            assert torch.equal(mean, net(x)) is around
        found.append(losses)
    assert found[0] == found[1]
