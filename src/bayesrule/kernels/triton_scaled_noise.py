"""Triton kernels of local noise of a given variance; imported only where Triton is installed.

The noise of a seed is that of the k-tied kernels, and is made again in the backward pass.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.triton_jit import kernel
from bayesrule.kernels.triton_noise import (
    STRIP,
    four_parts,
    has_fast_sines,
    row_blocks_of,
    rows_of_strip,
    splits_of,
    tile_columns,
)

COLUMNS = 128
"""Of one turn of a loop over the columns."""


@kernel
def _variance_of(variance, rows, columns, n, row_ok, ok, BY_ROW: tl.constexpr):
    """Of a tile; one column where all columns of a row share it."""
    if BY_ROW:
        return tl.load(variance + rows, row_ok, 0.0).to(tl.float32)[:, None]
    else:  # noqa: RET505, Triton compiles one of the two
        return tl.load(variance + rows[:, None].to(tl.int64) * n + columns[None, :], ok, 0.0).to(tl.float32)


@kernel
def _tile_of(matrix, rows, columns, b, n, row_stride, column_stride):
    at = matrix + rows[:, None].to(tl.int64) * row_stride + columns[None, :] * column_stride
    return tl.load(at, (rows < b)[:, None] & (columns < n)[None, :], 0.0).to(tl.float32)


@kernel
def _noise_kernel(
    y, variance, out, seed_at, b, n, row_stride, column_stride, tiny,
    COLUMNS: tl.constexpr, BY_ROW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """``y + √v ∘ ε`` for four strips of rows."""
    block, columns = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = _tile_of(y, rows_of_strip(block, 0), columns, b, n, row_stride, column_stride)
    squares, sides = four_parts(tl.load(seed_at), block, columns, first, FAST)
    for strip in tl.static_range(4):
        rows = rows_of_strip(block, strip)
        row_ok = rows < b
        ok = row_ok[:, None] & (columns < n)[None, :]
        start = _tile_of(y, rows, columns, b, n, row_stride, column_stride)
        v = _variance_of(variance, rows, columns, n, row_ok, ok, BY_ROW)
        total = start + tl.sqrt(tl.maximum(v, tiny) * squares[strip]) * sides[strip]
        tl.store(out + rows[:, None].to(tl.int64) * n + columns[None, :], total, ok)


@kernel
def _scaled(tile, variance, square, side, rows, columns, b, n, tiny, BY_ROW: tl.constexpr):
    """``½ g ∘ ε / √v`` of a tile, zero where there is no variance."""
    row_ok = rows < b
    v = _variance_of(variance, rows, columns, n, row_ok, row_ok[:, None] & (columns < n)[None, :], BY_ROW)
    slope = tl.where(v >= tiny, 0.5 * tl.rsqrt(tl.maximum(v, tiny)), 0.0)
    return tile * (tl.sqrt(square) * side) * slope


@kernel
def _entries_kernel(
    gradient, variance, out, seed_at, b, n, row_stride, column_stride, tiny, COLUMNS: tl.constexpr, FAST: tl.constexpr
):
    """The gradient in the variance of every entry."""
    block, columns = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = _tile_of(gradient, rows_of_strip(block, 0), columns, b, n, row_stride, column_stride)
    squares, sides = four_parts(tl.load(seed_at), block, columns, first, FAST)
    for strip in tl.static_range(4):
        rows = rows_of_strip(block, strip)
        tile = _tile_of(gradient, rows, columns, b, n, row_stride, column_stride)
        found = _scaled(tile, variance, squares[strip], sides[strip], rows, columns, b, n, tiny, False)
        ok = (rows < b)[:, None] & (columns < n)[None, :]
        tl.store(out + rows[:, None].to(tl.int64) * n + columns[None, :], found, ok)


@kernel
def _rows_kernel(
    gradient, variance, partial, seed_at, b, n, row_stride, column_stride, tiny, per_split,
    COLUMNS: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The gradient in the variance of every row, of one split of the columns."""
    block, start, seed = tl.program_id(0), tl.program_id(1) * per_split, tl.load(seed_at)
    sums = tl.zeros((4, STRIP), tl.float32)
    index = tl.arange(0, 4)[:, None]
    for first in range(start, min(start + per_split, n), COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        tile = _tile_of(gradient, rows_of_strip(block, 0), columns, b, n, row_stride, column_stride)
        squares, sides = four_parts(seed, block, columns, tile, FAST)
        for strip in tl.static_range(4):
            rows = rows_of_strip(block, strip)
            tile = _tile_of(gradient, rows, columns, b, n, row_stride, column_stride)
            found = _scaled(tile, variance, squares[strip], sides[strip], rows, columns, b, n, tiny, True)
            sums += tl.where(index == strip, tl.sum(found, 1)[None, :], 0.0)
    rows = (block * 4 + index) * STRIP + tl.arange(0, STRIP)[None, :]
    tl.store(partial + tl.program_id(1) * b + rows, sums, rows < b)


def add_noise(y: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    """``y + √v ∘ ε`` for a contiguous variance, of every entry or, in one column, of every row."""
    (b, n), out, blocks = y.shape, y.new_empty(y.shape), row_blocks_of(y.shape[0])
    columns = tile_columns(blocks, n)
    _noise_kernel[(blocks, triton.cdiv(n, columns))](
        y, variance, out, seed, b, n, *y.stride(), torch.finfo(torch.float32).tiny,
        BY_ROW=_by_row(y, variance), **_settings(y, columns),
    )  # fmt: skip
    return out


def variance_gradient(gradient: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    """The gradient of `add_noise` in the variance."""
    (b, n), tiny, blocks = gradient.shape, torch.finfo(torch.float32).tiny, row_blocks_of(gradient.shape[0])
    if not _by_row(gradient, variance):
        out, columns = torch.empty_like(variance), tile_columns(blocks, n)
        _entries_kernel[(blocks, triton.cdiv(n, columns))](
            gradient, variance, out, seed, b, n, *gradient.stride(), tiny, **_settings(gradient, columns)
        )
        return out
    splits, pieces = splits_of(blocks, triton.cdiv(n, COLUMNS))
    partial = variance.new_empty(splits, b, 1)
    _rows_kernel[(blocks, splits)](
        gradient, variance, partial, seed, b, n, *gradient.stride(), tiny, pieces * COLUMNS,
        **_settings(gradient, COLUMNS),
    )  # fmt: skip
    return partial.sum(0) if splits > 1 else partial[0]


def _settings(tensor: Tensor, columns: int) -> dict[str, int]:
    return {"COLUMNS": columns, "FAST": has_fast_sines(tensor), "num_warps": columns // 16}


def _by_row(tensor: Tensor, variance: Tensor) -> bool:
    return variance.shape[1] < tensor.shape[1]
