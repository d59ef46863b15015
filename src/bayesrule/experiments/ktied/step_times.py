"""Times of training steps: candidates take turns, so that a slow moment of the machine meets all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.nn import BayesianModule, kl
from bayesrule.timing import Turn, interleaved, wall_clock

Step = Callable[[], None]
WARM_UP = 5
TURN = 10
"""Steps timed together, which hides the clock's own cost."""


def interleaved_times(steps: Mapping[str, Step], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Seconds a step took, for each round, by name."""
    turns = {name: Turn(step, TURN) for name, step in steps.items()}
    times = interleaved(turns, wall_clock(device), rounds=rounds, warm_ups=WARM_UP)
    return {name: taken.tolist() for name, taken in times.items()}


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
