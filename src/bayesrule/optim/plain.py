"""Adam, for parameters that have no posterior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.optim.rule import Number

BETAS, EPS = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class PlainState:
    """Moments of the gradient."""

    steps: int | Tensor
    mean: Tensor
    square: Tensor

    @classmethod
    def of(cls, parameter: Tensor) -> PlainState:
        """Zero."""
        return cls(0, torch.zeros_like(parameter), torch.zeros_like(parameter))


def adam_update(parameter: Tensor, state: PlainState, gradient: Tensor, *, lr: Number) -> tuple[Tensor, PlainState]:
    """``w ← w − α m̂ / (√v̂ + ε)``, both moments bias-corrected   [Kingma & Ba 2015, Algorithm 1]."""
    steps = state.steps + 1
    mean = torch.lerp(state.mean, gradient, 1 - BETAS[0])
    square = torch.lerp(state.square, gradient.square(), 1 - BETAS[1])
    denominator = (square / (1 - BETAS[1] ** steps)).sqrt() + EPS
    return parameter - lr * (mean / (1 - BETAS[0] ** steps)) / denominator, PlainState(steps, mean, square)
