"""How much of a matrix its first singular values explain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.typing import Drawable

ROUNDING = 1e-12
"""Of a sum of fractions: a matrix of rank 2 is explained by two singular values, to the last digit but one."""


@dataclass(frozen=True)
class Spectrum:
    """Explained variance per singular value of one weight's posterior, largest first."""

    means: Float[Tensor, " ranks"]
    stds: Float[Tensor, " ranks"]


@torch.no_grad()
def explained_variance(matrix: Tensor) -> Float[Tensor, "*batch ranks"]:
    """``γ_k² / Σ_i γ_i²`` for every singular value γ, largest first   [k-tied Normal, Fig. 3].

    The first k sum to the share of ``Σ entries²`` that the best rank-k approximation keeps. Computed in double
    precision, since the small ones are what a truncation leaves out. A matrix of zeros gives zeros.

    Args:
        matrix: One (…, m, n) or several.

    Example:
        >>> explained_variance(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        tensor([0.6400, 0.3600], dtype=torch.float64)
    """
    if matrix.ndim < 2:
        raise ShapeMismatch("Only a matrix has singular values", got=f"shape {tuple(matrix.shape)}")
    if not bool(torch.isfinite(matrix).all()):
        raise InvalidArgument("Only a matrix of finite numbers has singular values", got="NaN or infinite entries")
    squares = torch.linalg.svdvals(matrix.double()).square()
    return squares / squares.sum(-1, keepdim=True).clamp_min(torch.finfo(squares.dtype).tiny)


def rank_that_explains(fraction: float, explained: Float[Tensor, " ranks"]) -> int:
    """The smallest rank whose singular values explain at least this fraction."""
    if not 0 < fraction <= 1:
        raise InvalidArgument("The fraction to explain lies above 0 and at most at 1", got=fraction)
    missing = explained.cumsum(-1) < fraction - ROUNDING
    return min(int(missing.sum()) + 1, len(explained))


def spectra(model: Drawable) -> dict[str, Spectrum]:
    """The spectrum of every weight, in its fan-in × fan-out view; biases have none."""
    return {
        name: Spectrum(explained_variance(posterior.mean), explained_variance(posterior.stddev))
        for name, posterior in model.posteriors().items()
        if posterior.event_dim == 2
    }
