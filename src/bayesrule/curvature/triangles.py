"""Products of which a triangle is enough: on a CPU, half of a square's work need not be done."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

BLOCK = 80
"""Rows of a triangle that are multiplied at a time."""
SMALL = 256
"""Rows up to which a triangle is treated as a square, as on a GPU and in a batch: more calls cost more there."""


def lower_matmul(lower: Float[Tensor, "*batch n n"], x: Float[Tensor, "*batch n k"]) -> Float[Tensor, "*batch n k"]:
    """``L x`` of a lower triangle, some rows at a time, each with the columns it has."""
    size = lower.shape[-1]
    if not _by_blocks(lower, size):
        return lower @ x
    found = x.new_empty((size, x.shape[-1]))
    for start, stop in _blocks(size):
        found[start:stop].addmm_(lower[start:stop, :stop], x[:stop], beta=0)
    return found


def gram(rows: Float[Tensor, "*batch k n"], scale: float) -> Float[Tensor, "*batch n n"]:
    """``scale · XᵀX``: the lower triangle, and its mirror image."""
    size = rows.shape[-1]
    if not _by_blocks(rows, size):
        return rows.mT @ rows * scale
    found = rows.new_empty((size, size))
    for start, stop in _blocks(size):
        found[start:stop, :stop].addmm_(rows[:, start:stop].mT, rows[:, :stop], beta=0, alpha=scale)
        found[:start, start:stop] = found[start:stop, :start].mT
    return found


def _by_blocks(tensor: Tensor, size: int) -> bool:
    return size > SMALL and tensor.ndim == 2 and tensor.device.type == "cpu"


def _blocks(size: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, size)) for start in range(0, size, BLOCK)]
