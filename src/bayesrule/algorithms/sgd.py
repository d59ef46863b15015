"""SGD: a Gaussian with fixed covariance, the delta method, minibatches   (Sec. 4.1)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.descent import Losses, descend
from bayesrule.expfam import Delta, GaussianFixed, NoCurvature, Schedule


def sgd(
    losses: Losses,
    start: Float[Tensor, " dim"],
    step_size: Schedule | float,
    *,
    momentum: float = 0.0,
    precision: Float[Tensor, "dim dim"] | None = None,
) -> Iterator[Float[Tensor, " dim"]]:
    """θ ← θ − ρS⁻¹∇̂ℓ(θ) + γ(θ_t − θ_{t−1}), as the mean of N(m, S⁻¹)   (Eqs. 35 and 75).

    The momentum is that of Eq. 80, for a fixed covariance Polyak's heavy ball whatever S is.
    """
    family = GaussianFixed(torch.eye(len(start)).to(start) if precision is None else precision)
    steps = descend(family, family.from_mean(start), losses, Delta(), NoCurvature(), step_size, momentum=momentum)
    return (family.to_mean(natural) for natural in steps)
