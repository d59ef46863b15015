"""The network and the training steps that benchmarks of optimizers share."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.train import Captured

Step = Callable[[], object]


def network(device: str) -> nn.Sequential:
    """The multilayer perceptron 784-400-400-10, always from the same start."""
    torch.manual_seed(0)
    layers = nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)
    return nn.Sequential(*layers).to(device)


def plain_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    """Of an optimizer of torch's."""

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def posterior_step(net: nn.Module, optimizer: br.optim.PosteriorOptimizer, x: Tensor, y: Tensor) -> Step:
    """Of an optimizer that draws its weights."""

    def step() -> None:
        with optimizer.sampled_params():
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def recorded_plain_step(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Step:
    """The same as a CUDA graph."""
    step = plain_step(net, optimizer, x, y)

    def work() -> tuple[Tensor, ...]:
        step()
        return ()

    return Captured(work, x.device)


def recorded_posterior_step(net: nn.Module, optimizer: br.optim.PosteriorOptimizer, x: Tensor, y: Tensor) -> Step:
    """Likewise."""
    step = optimizer.captured(lambda x, y: F.cross_entropy(net(x), y))
    return lambda: step(x, y)


def seconds_of(step: Step, steps: int, device: str) -> float:
    """So many steps, with all that they launched; on a CPU the process's own time, whatever else runs there."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    for _ in range(steps):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start
