"""Gradient descent: a Gaussian with fixed covariance I, and the delta method   (Sec. 1.3.1)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.descent import descend
from bayesrule.expfam import Delta, GaussianFixed, Loss, NoCurvature, Schedule


def gradient_descent(
    loss: Loss, start: Float[Tensor, " dim"], step_size: Schedule | float
) -> Iterator[Float[Tensor, " dim"]]:
    """θ ← θ − ρ∇ℓ(θ), as the mean of N(m, I)   (Eq. 7)."""
    family = GaussianFixed(torch.eye(len(start)).to(start))
    steps = descend(family, family.from_mean(start), lambda t: loss, Delta(), NoCurvature(), step_size)
    return (family.to_mean(natural) for natural in steps)
