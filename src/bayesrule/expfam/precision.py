"""A Gaussian's moments from the Cholesky factor L of its precision S = LLᵀ."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def solve_precision(
    cholesky: Float[Tensor, "*#batch dim dim"], vector: Float[Tensor, "*#batch dim"]
) -> Float[Tensor, "*#batch dim"]:
    """S⁻¹v."""
    return torch.cholesky_solve(vector.unsqueeze(-1), cholesky).squeeze(-1)


def correlate(
    cholesky: Float[Tensor, "*#batch dim dim"], standard: Float[Tensor, "*#batch dim"]
) -> Float[Tensor, "*#batch dim"]:
    """L⁻ᵀε, which has covariance S⁻¹ for standard normal ε."""
    return torch.linalg.solve_triangular(cholesky.mT, standard.unsqueeze(-1), upper=True).squeeze(-1)
