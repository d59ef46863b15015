"""Optimizers on a GPU: autocast, gradient scaling, a resumed run, and predictions."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesrule as br

pytestmark = pytest.mark.gpu


def digits(device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (64,), generator=generator)
    x = torch.randn(64, 1, 8, 8, generator=generator) + y[:, None, None, None]
    return x.to(device), y.to(device)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(54, 4)
    ).cuda()


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
