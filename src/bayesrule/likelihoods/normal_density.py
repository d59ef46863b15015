"""The Normal log density, shared by every Gaussian likelihood."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor


def normal_log_prob(residuals: Float[Tensor, "*leading target"], log_std: Tensor) -> Float[Tensor, "*leading"]:
    """``Σ_j −½(r_j/σ_j)² − log σ_j − ½ log 2π`` over the last dimension."""
    return (-0.5 * (residuals * (-log_std).exp()).square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
