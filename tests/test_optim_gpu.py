"""Optimizers on a GPU: autocast, gradient scaling, a resumed run, and predictions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.optim import capture
from optim_on_gpu import CAPTURED, all_values, digits, network, perceptron, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["NoisyAdam", "NoisyKFAC", "NoisyEKFAC", "NoisyFull"])
def test_mixed_precision_trains(name: str, dtype: torch.dtype) -> None:
    net = network()
    optimizer = getattr(br.optim, name)(net, n_data=1000, likelihood=br.Categorical(), lr=0.02, warm_up=True, seed=1)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    x, y = digits()
    losses = []
    for _ in range(60):
        with optimizer.sampled_params(), torch.autocast("cuda", dtype):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert br.predict(optimizer, x, samples=4).probs.shape == (64, 4)


@pytest.mark.parametrize("name", ["NoisyAdam", "NoisyKFAC", "NoisyEKFAC"])
def test_a_resumed_run_is_the_same(name: str) -> None:
    x, y = digits()

    def run(net: nn.Module, optimizer: br.optim.PosteriorOptimizer, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            with optimizer.sampled_params():
                optimizer.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    def start(seed: int) -> tuple[nn.Module, br.optim.PosteriorOptimizer]:
        net = network()
        return net, getattr(br.optim, name)(net, n_data=1000, likelihood=br.Categorical(), seed=seed)

    deterministic = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        net, optimizer = start(0)
        run(net, optimizer, 3)
        saved = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
        want = run(net, optimizer, 3)
        other, resumed = start(1)
        other.load_state_dict(saved[0])
        resumed.load_state_dict(saved[1])
        assert run(other, resumed, 3) == want
    finally:
        torch.backends.cudnn.deterministic = deterministic


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    """At a step without curvature, where the answer is awaited after the update was queued."""
    net = network()
    optimizer = br.optim.NoisyKFAC(net, n_data=1000, likelihood=br.Categorical(), T_stats=8, T_inv=8, seed=0)
    x, y = digits()
    for factor in (1.0, 1.0, float("nan")):
        with optimizer.sampled_params():
            optimizer.zero_grad()
            (F.cross_entropy(net(x), y) * factor).backward()
        if factor == 1.0:
            optimizer.step()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with pytest.raises(br.errors.InvalidArgument, match="not finite"):
        optimizer.step()
    assert all(torch.equal(now, then) for now, then in zip(net.parameters(), before, strict=True))
    assert optimizer.steps == 2


@pytest.mark.parametrize("mirrored", [False, True], ids=["fresh", "mirrored"])
@pytest.mark.parametrize("name", CAPTURED)
def test_captured_steps_are_those_done_one_by_one(name: str, mirrored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly those of the same operations without a graph, and but for roundings those of an eager optimizer."""
    graphs = perceptron(name, True, mirrored=mirrored)
    losses = run(graphs, 33)
    assert any(not isinstance(known, int) for known in graphs._capture._known.values())
    eager = perceptron(name, False, mirrored=mirrored)
    torch.testing.assert_close(run(eager, 33), losses, rtol=1e-10, atol=0)
    monkeypatch.setattr(capture, "WARM_UP", 10**9)
    one_by_one = perceptron(name, True, mirrored=mirrored)
    assert run(one_by_one, 33) == losses
    for found, want, close in zip(*map(all_values, (graphs, one_by_one, eager)), strict=True):
        assert torch.equal(found, want)
        torch.testing.assert_close(found, close, rtol=1e-9, atol=1e-12)
    assert graphs.limited_steps == one_by_one.limited_steps


@pytest.mark.parametrize("name", CAPTURED)
def test_a_resumed_captured_run_is_the_same(name: str) -> None:
    """Saved while graphs are replayed, loaded where others have been recorded."""
    whole = perceptron(name, True, mirrored=True)
    run(whole, 13)
    saved = copy.deepcopy((whole.model.state_dict(), whole.state_dict()))
    want = run(whole, 12)
    resumed = perceptron(name, True, seed=7, mirrored=True)
    run(resumed, 9)
    resumed.model.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert run(resumed, 12) == want
    assert all(torch.equal(left, right) for left, right in zip(all_values(resumed), all_values(whole), strict=True))


@pytest.mark.parametrize("name", ["NoisyKFAC", "VOGN", "IVON"])
def test_a_captured_step_refuses_gradients_that_are_not_finite(name: str) -> None:
    optimizer = perceptron(name, True)
    run(optimizer, 13)
    x, y = digits()
    with optimizer.sampled_params():
        optimizer.zero_grad()
        (F.cross_entropy(optimizer.model(x.double()), y) * float("nan")).backward()
    before = all_values(optimizer)
    with pytest.raises(br.errors.InvalidArgument, match="not finite"):
        optimizer.step()
    assert all(torch.equal(left, right) for left, right in zip(all_values(optimizer), before, strict=True))
    optimizer.zero_grad()
    assert all(loss < 10 for loss in run(optimizer, 5))


@pytest.mark.parametrize("name", ["NoisyKFAC", "VOGN"])
def test_captured_steps_train_under_a_gradient_scaler(name: str) -> None:
    net = network()
    optimizer = getattr(br.optim, name)(
        net, n_data=1000, likelihood=br.Categorical(), lr=0.02, fisher="sampled", T_stats=4, T_inv=8, seed=1,
        capturable=True,
    )  # fmt: skip
    scaler = torch.amp.GradScaler("cuda")
    x, y = digits()
    losses = []
    for _ in range(60):
        with optimizer.sampled_params(), torch.autocast("cuda", torch.float16):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
