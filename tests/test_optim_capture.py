"""Draws and updates that are recorded and replayed: the same numbers as those that are done one by one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim import capture
from bayesrule.optim.buffers import leaves
from clipped_run import clipped_run
from launch_tape import TapeRecorder, tape_recorders
from optim_problems import EVERY, make, network, regression, same, step, values

all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
GAUSSIAN = [br.optim.NoisyKFAC, br.optim.NoisyAdam, br.optim.VOGN, br.optim.IVON, br.optim.KTiedVON]
five = pytest.mark.parametrize("kind", GAUSSIAN, ids=lambda kind: kind.__name__)


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[TapeRecorder]:
    return tape_recorders(monkeypatch)


def problem(optimizer: br.optim.PosteriorOptimizer) -> torch.Tensor:
    x, y = regression()
    return optimizer.nll(optimizer.model(x), y)


def run(optimizer: br.optim.PosteriorOptimizer, steps: int, decay: float = 0.9) -> list[float]:
    return clipped_run(optimizer, lambda: problem(optimizer), steps, decay=decay, most=0.5)


def pair(kind: type, **options: Any) -> tuple[br.optim.PosteriorOptimizer, br.optim.PosteriorOptimizer]:
    return tuple(make(kind, network(3, 4, 4, 2), capturable=flag, **options) for flag in (False, True))


def close(plain: br.optim.PosteriorOptimizer, captured: br.optim.PosteriorOptimizer) -> None:
    for left, right in zip(values(plain), values(captured), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-14)
    for name, posterior in plain.posteriors().items():
        other = captured.posteriors()[name]
        torch.testing.assert_close(posterior.variance, other.variance, rtol=1e-11, atol=1e-14)
    assert plain.limited_steps == captured.limited_steps


@all_kinds
@pytest.mark.parametrize("mirrored", [False, True], ids=["fresh", "mirrored"])
def test_captured_steps_are_the_same(kind, mirrored, recorders) -> None:
    plain, captured = pair(kind, mirrored=mirrored, T_stats=5, T_inv=10)
    torch.testing.assert_close(run(plain, 26), run(captured, 26), rtol=1e-12, atol=0)
    close(plain, captured)
    assert sum(each.replayed for each in recorders) > 20


@five
def test_captured_noise_of_gamma_likelihoods_and_learned_priors(kind, recorders) -> None:
    gamma, learned = br.likelihoods.GaussianGammaNoise, br.priors.LearnedNormal
    plain, captured = (make(kind, network(3, 4, 2), capturable=flag, likelihood=gamma(), prior=learned(),
                            T_stats=5, T_inv=10) for flag in (False, True))  # fmt: skip
    torch.testing.assert_close(run(plain, 24), run(captured, 24), rtol=1e-11, atol=0)
    close(plain, captured)
    assert recorders


@five
def test_states_stay_where_they_are_and_values_do_not(kind, recorders) -> None:
    captured = make(kind, T_stats=4, T_inv=8, capturable=True)
    run(captured, 9)
    places = [leaf.data_ptr() for leaf in leaves(tuple(captured.states.values()))]
    posteriors = captured.posteriors()
    before = {name: (q.mean.clone(), q.variance.clone()) for name, q in posteriors.items()}
    run(captured, 9)
    assert [leaf.data_ptr() for leaf in leaves(tuple(captured.states.values()))] == places
    for name, (mean, variance) in before.items():
        assert torch.equal(posteriors[name].mean, mean)
        assert torch.equal(posteriors[name].variance, variance)


@five
def test_a_resumed_run_is_the_same_bit_for_bit(kind, recorders) -> None:
    """Into an optimizer that captures and into one that does not, from replays to warm-up and back."""
    options: dict[str, Any] = {"T_stats": 4, "T_inv": 8, "mirrored": True}
    whole = make(kind, capturable=True, **options)
    run(whole, 13)
    saved = copy.deepcopy((whole.model.state_dict(), whole.state_dict()))
    want = run(whole, 9)
    for flag, tolerance in ((True, 0.0), (False, 1e-12)):
        resumed = make(kind, network(3, 4, 2, seed=1), seed=9, capturable=flag, **options)
        run(resumed, 7)
        resumed.model.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        torch.testing.assert_close(run(resumed, 9), want, rtol=tolerance, atol=0)
        for left, right in zip(values(resumed), values(whole), strict=True):
            torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@five
def test_several_blocks_and_exceptions(kind, recorders) -> None:
    """Blocks that are averaged, blocks that fail, and parameters that get no gradient, in turn with plain steps."""
    plain, captured = pair(kind, T_stats=5, T_inv=10)

    def odd(optimizer: br.optim.PosteriorOptimizer) -> None:
        for factor in (1.0, 2.0, None):
            try:
                with optimizer.sampled_params():
                    loss = problem(optimizer) * (factor or 1.0)
                    loss.backward()
                    if factor is None:
                        raise KeyError
            except KeyError:
                pass
        optimizer.step()

    def frozen(optimizer: br.optim.PosteriorOptimizer) -> None:
        with optimizer.sampled_params():
            optimizer.zero_grad()
            problem(optimizer).backward()
        optimizer.model[2].bias.grad = None
        optimizer.step()

    for optimizer in (plain, captured):
        run(optimizer, 12, 1.0)
        for _ in range(4):
            odd(optimizer)
            step(optimizer, lambda o=optimizer: problem(o))
            frozen(optimizer)
    close(plain, captured)


@five
def test_changed_options_and_given_noise_are_heeded(kind, recorders) -> None:
    plain, captured = pair(kind, T_stats=5, T_inv=10)
    for optimizer in (plain, captured):
        run(optimizer, 12, 1.0)
        optimizer.param_groups[0]["max_kl"] = 1e-7
        torch.manual_seed(0)
        step(optimizer, lambda o=optimizer: problem(o), noise=lambda shape, law, like: torch.randn(shape).to(like))
        run(optimizer, 5, 1.0)
        parameter = optimizer.model[0].weight
        parameter.data = parameter.data.clone() * 0.9  # the old memory is no longer the network's
        run(optimizer, 5, 1.0)
    close(plain, captured)
    assert captured.limited_steps > 0


@five
def test_a_gradient_that_is_not_finite_changes_nothing(kind, recorders) -> None:
    captured = make(kind, T_stats=16, T_inv=16, capturable=True)
    run(captured, 12)
    with captured.sampled_params():
        captured.zero_grad()
        (problem(captured) * float("nan")).backward()
    with pytest.warns(UserWarning, match="of 1 blocks since the last step"):
        state = copy.deepcopy(captured.state_dict()["posterior"]["groups"])
    before = values(captured)
    with pytest.raises(InvalidArgument, match="not finite"):
        captured.step()
    assert same(values(captured), before)
    assert captured.steps == 12
    now = captured.state_dict()["posterior"]["groups"]
    for name, packed in state.items():
        assert packed["steps"] == now[name]["steps"] == 12
        assert torch.equal(packed["momentum"], now[name]["momentum"])
    captured.zero_grad()
    run(captured, 2)


def test_norm_layers_half_precision_and_tensor_rates(recorders) -> None:
    """Plain parameters by Adam, means kept in float32, and a step size that is a tensor."""

    def start(flag: bool) -> br.optim.PosteriorOptimizer:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)).bfloat16()
        return br.optim.VOGN(net, n_data=50, lr=0.05, likelihood=br.Gaussian(0.5), capturable=flag, seed=3)

    x, y = (each.bfloat16() for each in regression())
    found = []
    for flag in (False, True):
        optimizer = start(flag)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.05)
        for count in range(8):
            optimizer.param_groups[0]["lr"].fill_(0.05 / (1 + count))
            step(optimizer, lambda o=optimizer: o.nll(o.model(x).float(), y.float()))
        found.append(list(optimizer.means().values()))
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [br.optim.NoisyKFAC, br.optim.VOGN], ids=lambda kind: kind.__name__)
def test_convolutions_batches_of_other_sizes_and_two_passes_in_a_block(kind, recorders) -> None:
    x = torch.randn(6, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(6) % 2

    def start(flag: bool) -> br.optim.PosteriorOptimizer:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 2)).double()
        return kind(net, n_data=50, likelihood=br.Categorical(), T_inv=20, capturable=flag, seed=3)

    plain, captured = start(False), start(True)
    for optimizer in (plain, captured):
        for count in range(16):
            size = 6 if count % 4 else 5
            with optimizer.sampled_params():
                optimizer.nll(optimizer.model(x[:size]), y[:size]).backward()
                if count % 3 == 0:
                    optimizer.nll(optimizer.model(x[:3]), y[:3]).backward()
            optimizer.step()
    close(plain, captured)
    assert recorders


def test_only_one_cuda_device_is_captured() -> None:
    with pytest.raises(Unsupported, match="one CUDA device"):
        make(br.optim.IVON, capturable=True)


def test_kinds_of_work_make_room_for_new_ones() -> None:
    kept = capture.Capture(lambda work: work)
    for key in range(3 * capture.MOST):
        for _ in range(capture.WARM_UP + 1):
            assert kept.do(key, lambda key=key: key) == key
    assert len(kept._known) == len(kept._found) == capture.MOST
