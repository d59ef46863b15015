"""A run that the tests of recorded work share, on a CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesrule.optim import PosteriorOptimizer


def clipped_run(
    optimizer: PosteriorOptimizer, loss: Callable[[], Tensor], steps: int, *, decay: float, most: float
) -> list[float]:
    """Steps with a decaying step size and clipped gradients."""
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    found = []
    for _ in range(steps):
        with optimizer.sampled_params():
            optimizer.zero_grad()
            value = loss()
            value.backward()
        torch.nn.utils.clip_grad_norm_(optimizer.model.parameters(), most)
        optimizer.step()
        scheduler.step()
        found.append(value.item())
    return found
