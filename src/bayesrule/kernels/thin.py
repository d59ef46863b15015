"""Sums of a few outer products, on a CPU: by a matrix product where that is fast, else one by one."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_VECTORS = 12
"""Above that a matrix product is faster."""
FEW_COLUMNS = 800
"""Up to that, too: beyond, one so thin is several times slower."""


def outer_sum(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """``leftᵀ right`` for a few pairs of vectors, given as rows, into ``out`` if there is one."""
    out = left.new_empty(left.shape[1], right.shape[1]) if out is None else out
    if left.shape[0] > MOST_VECTORS or right.shape[1] <= FEW_COLUMNS:
        return torch.mm(left.mT, right, out=out)
    (first, *firsts), (second, *seconds) = left.unbind(), right.unbind()
    torch.mul(first.unsqueeze(1), second, out=out)
    for first, second in zip(firsts, seconds, strict=True):
        out.addr_(first, second)
    return out
