"""Products of the columns of a factor in pairs: ``(U Vᵀ)²_ij = Σ_{a≤c} w_ac (u_ia u_ic)(v_ja v_jc)``."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

LEAST_LOG = -1e30
"""Stands for the logarithm of zero, which times zero would be no number."""


def pair_products(factor: Tensor, off_diagonal: float) -> Tensor:
    """``f_a ∘ f_c`` for the k(k+1)/2 pairs a ≤ c, as columns; pairs a < c times ``off_diagonal``."""
    scaled = factor if off_diagonal == 1 else off_diagonal * factor
    apart = range(1, factor.shape[-1])
    return torch.cat([factor.square(), *(scaled[..., :-by] * factor[..., by:] for by in apart)], -1)


def pair_rows(logs: Tensor, off_diagonal: float) -> Tensor:
    """`pair_products` of ``exp(logs)``, as rows: ``exp(log f_a + log f_c)``, two matrices' sums at once."""
    exponents, offsets = _exponents(logs.shape[-1], off_diagonal, logs.dtype, logs.device)
    return torch.addmm(offsets, exponents, logs.mT.clamp_min(LEAST_LOG)).exp_()


def pair_rows_backward(rows: Tensor, gradient: Tensor, rank: int) -> Tensor:
    """The gradient in the logarithms, from the rows and twice the gradient in them."""
    return (rows * gradient).mT @ _half_exponents(rank, rows.dtype, rows.device)


@lru_cache(maxsize=16)
def _half_exponents(rank: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _exponents(rank, 1.0, dtype, device)[0] / 2


@lru_cache(maxsize=64)
def _exponents(rank: int, off_diagonal: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """How often each column stands in each pair, and the logarithm of the pair's factor."""
    with torch.inference_mode(False), torch.no_grad():
        alone = torch.eye(rank, dtype=dtype, device=device)
        apart = [alone[:-by] + alone[by:] for by in range(1, rank)]
        offsets = torch.full((rank * (rank + 1) // 2, 1), math.log(off_diagonal), dtype=dtype, device=device)
        offsets[:rank] = 0
        return torch.cat([2 * alone, *apart]), offsets
