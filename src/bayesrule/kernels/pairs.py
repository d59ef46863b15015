"""Products of the columns of a factor in pairs: ``(U Vᵀ)²_ij = Σ_{a≤c} w_ac (u_ia u_ic)(v_ja v_jc)``."""

from __future__ import annotations

import torch
from torch import Tensor


def pair_products(factor: Tensor, off_diagonal: float) -> Tensor:
    """``f_a ∘ f_c`` for the k(k+1)/2 pairs a ≤ c, as columns; pairs a < c times ``off_diagonal``."""
    scaled = factor if off_diagonal == 1 else off_diagonal * factor
    apart = range(1, factor.shape[-1])
    return torch.cat([factor.square(), *(scaled[..., :-by] * factor[..., by:] for by in apart)], -1)


def pair_products_backward(factor: Tensor, off_diagonal: float, gradient: Tensor) -> Tensor:
    """The gradient in the factor, from that in `pair_products`."""
    rank = factor.shape[-1]
    total = factor * gradient[..., :rank] * 2
    start = rank
    for by in range(1, rank):
        part = gradient[..., start : start + rank - by] * off_diagonal
        total[..., :-by] += part * factor[..., by:]
        total[..., by:] += part * factor[..., :-by]
        start += rank - by
    return total
