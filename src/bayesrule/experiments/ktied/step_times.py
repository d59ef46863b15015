"""Times of training steps: candidates take turns, so that a slow moment of the machine meets all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.nn import BayesianModule, kl

Step = Callable[[], None]
WARM_UP = 5
TURN = 10
"""Steps timed together, which hides the clock's own cost."""


def interleaved_times(steps: Mapping[str, Step], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds a step took, for each round, by name."""
    for step in steps.values():
        _seconds(step, WARM_UP, device)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            found[name].append(_seconds(step, TURN, device) / TURN)
    return found


def _seconds(step: Step, count: int, device: torch.device) -> float:
    _finish(device)
    started = time.perf_counter()
    for _ in range(count):
        step()
    _finish(device)
    return time.perf_counter() - started


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def training_step(model: nn.Module, x: Tensor, y: Tensor, n_data: int, lr: float = 1e-3) -> Step:
    """An ordinary step of Adam, on the cross-entropy and, for a Bayesian model, the KL."""
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=lr)

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        if isinstance(model, BayesianModule):
            loss = loss + kl(model) / n_data
        loss.backward()
        optimizer.step()

    return step


def median_and_error(seconds: list[float]) -> tuple[float, float | None]:
    """The median, and the standard error of the mean beside it as the paper gives it; unknown after one round."""
    if len(seconds) < 2:
        return median(seconds), None
    return median(seconds), torch.tensor(seconds).std().item() / len(seconds) ** 0.5
