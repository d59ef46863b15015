"""``Σ log(U Vᵀ)`` and its gradient on a CPU: block by block within the cache, with few logarithms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrule.kernels.thin import outer_sum

MOST_HALVINGS = 3
"""Logarithms are taken of products of at most 2³ entries; more would not be noticed."""
FEW_ENTRIES = 1 << 13
"""Where every operation costs more than what it computes."""


def sum_log_blocks(left: Tensor, right: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, and its gradients ``(1/S) right`` and ``(1/S)ᵀ left``, for factors (m, k) and (n, k).

    Args:
        left: U.
        right: V.
        rows: How many rows of ``S = U Vᵀ`` exist at a time.
    """
    if left.shape[0] * right.shape[0] < FEW_ENTRIES and rows >= left.shape[0]:
        product = left @ right.mT
        inverse = product.reciprocal()
        return product.log_().sum(), inverse @ right, inverse.mT @ left
    scale, halvings = _range(left, right)
    left_rows, right_rows = (left / scale).mT.contiguous(), right.mT.contiguous()
    fan_in, fan_out = left.shape[0], right.shape[0]
    buffer = left.new_empty(min(rows, fan_in), fan_out)
    left_gradient, right_gradient = torch.empty_like(left_rows), torch.zeros_like(right_rows)
    total = left.new_full((), fan_in * fan_out * math.log(scale), dtype=torch.float64)
    for start in range(0, fan_in, rows):
        block = left_rows[:, start : start + rows]
        inverse = outer_sum(block, right_rows, out=buffer[: block.shape[1]]).reciprocal_()
        # Few rows times a matrix: the fastest of the forms that a product so thin can be given.
        left_gradient[:, start : start + rows] = right_rows @ inverse.mT
        right_gradient += block @ inverse
        total -= _sum_log(inverse.view(-1), halvings)
    return total.to(left.dtype), left_gradient.div_(scale).mT.contiguous(), right_gradient.mT.contiguous()


def _sum_log(entries: Tensor, halvings: int) -> Tensor:
    """``Σ log`` of entries that may be overwritten; they are multiplied in pairs, and the pairs in pairs, before."""
    odd = entries.new_zeros(())
    for _ in range(halvings):
        half, rest = divmod(entries.shape[0], 2)
        if rest:
            odd += entries[-1].log()
        entries[:half] *= entries[half : 2 * half]
        entries = entries[:half]
    return entries.log_().sum() + odd


def _range(left: Tensor, right: Tensor) -> tuple[float, int]:
    """A scale about which the entries of S lie, and how often they can be multiplied in pairs without overflow."""
    (low_left, high_left), (low_right, high_right) = (torch.aminmax(factor, dim=0) for factor in (left, right))
    low, high = float(low_left @ low_right), float(high_left @ high_right)
    if not (low > 0 and math.isfinite(high)):
        return 1.0, 0
    middle, half_width = (math.log(high) + math.log(low)) / 2, (math.log(high) - math.log(low)) / 2
    room = 0.9 * math.log(torch.finfo(left.dtype).max)
    halvings = math.floor(math.log2(room / half_width)) if half_width > 0 else MOST_HALVINGS
    return (math.exp(middle), min(MOST_HALVINGS, halvings)) if halvings >= 0 else (1.0, 0)
