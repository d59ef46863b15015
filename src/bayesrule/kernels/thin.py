"""Products with a few vectors, one vector at a time: on a CPU several times faster than a matrix product so thin."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_VECTORS = 12
"""Above that a matrix product is faster."""


def thin_product(matrix: Tensor, vectors: Tensor) -> Tensor:
    """``matrix vectorsᵀ`` for a few vectors, given as rows."""
    if vectors.shape[0] > MOST_VECTORS:
        return matrix @ vectors.mT
    return torch.stack([torch.mv(matrix, vector) for vector in vectors.unbind()]).mT


def outer_sum(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """``leftᵀ right`` for a few pairs of vectors, given as rows, into ``out`` if there is one."""
    out = left.new_empty(left.shape[1], right.shape[1]) if out is None else out
    if left.shape[0] > MOST_VECTORS:
        return torch.mm(left.mT, right, out=out)
    (first, *firsts), (second, *seconds) = left.unbind(), right.unbind()
    torch.mul(first.unsqueeze(1), second, out=out)
    for first, second in zip(firsts, seconds, strict=True):
        out.addr_(first, second)
    return out
