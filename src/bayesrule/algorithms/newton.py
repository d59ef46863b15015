"""Newton's method: a Gaussian with free mean and covariance, the delta method, ρ = 1   (Sec. 1.3.2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.descent import descend
from bayesrule.expfam import Delta, GaussianFull, Hessian, Loss, Natural, Schedule


def newton(
    loss: Loss, start: Float[Tensor, " dim"], step_size: Schedule | float = 1.0, *, line_search: bool = False
) -> Iterator[Natural]:
    """θ ← θ − [∇²ℓ(θ)]⁻¹∇ℓ(θ)   (Eq. 8), as mean and precision of a Gaussian; ρ < 1 averages Hessians (Eq. 12)."""
    family = GaussianFull()
    first = family.from_mean_precision(start, torch.eye(len(start)).to(start))
    return descend(family, first, lambda t: loss, Delta(), Hessian(), step_size, line_search=line_search)
