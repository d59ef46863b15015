"""Triton kernels that carry the gradients of k-tied local noise to a layer's inputs and its fan-in factor."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.triton_jit import kernel
from bayesrule.kernels.triton_noise import PADDED, settings, splits_of
from bayesrule.kernels.triton_normals import places

FEW_PAIRS = 3
"""Of rank 2: so few are summed one by one, which spares a matrix unit's rearrangements."""
GRADIENT_PROGRAMS = 1024
"""About how many a launch should have: more than in the forward pass, whose programs are larger."""
INPUT_ROWS, INPUT_BYTES = 64, 128
"""Of a tile: one line of the cache from each row."""


@kernel
def _few_inputs_kernel(
    x, of_narrow, pairs, of_x, of_pairs, b, m, rows_per_split,
    P: tl.constexpr, STRIPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WITH_X: tl.constexpr,
):  # fmt: skip
    """``∂x += x ∘ (h VV UUᵀ)``, and leaves ``(x²)ᵀ h VV`` of one split of the rows; one or three pairs.

    It sums the strips of columns for which ``h VV`` was found.
    """
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column_ok = columns < m
    sum0 = tl.zeros((ROWS, BLOCK), tl.float32)
    sum1 = tl.zeros((ROWS, BLOCK), tl.float32)
    sum2 = tl.zeros((ROWS, BLOCK), tl.float32)
    start = tl.program_id(1) * rows_per_split
    for first in range(start, min(start + rows_per_split, b), ROWS):
        rows = tl.arange(0, ROWS) + first
        row_ok = rows < b
        at, ok = places(x, rows, columns, m, row_ok, column_ok)
        tile = tl.load(at, ok, 0.0).to(tl.float32)
        if WITH_X:
            at, ok = places(of_x, rows, columns, m, row_ok, column_ok)
            before = tl.load(at, ok, 0.0).to(tl.float32)
        h0 = _strip_sum(of_narrow + rows, row_ok, P * b, STRIPS)
        slope = h0[:, None] * tl.load(pairs + columns, column_ok, 0.0)[None, :]
        sum0 += tile * tile * h0[:, None]
        if P > 1:
            h1 = _strip_sum(of_narrow + b + rows, row_ok, P * b, STRIPS)
            h2 = _strip_sum(of_narrow + 2 * b + rows, row_ok, P * b, STRIPS)
            slope += h1[:, None] * tl.load(pairs + m + columns, column_ok, 0.0)[None, :]
            slope += h2[:, None] * tl.load(pairs + 2 * m + columns, column_ok, 0.0)[None, :]
            sum1 += tile * tile * h1[:, None]
            sum2 += tile * tile * h2[:, None]
        if WITH_X:
            tl.store(at, before + tile * slope, ok)
    place = of_pairs + tl.program_id(1) * P * m + columns
    tl.store(place, tl.sum(sum0, 0), column_ok)
    if P > 1:
        tl.store(place + m, tl.sum(sum1, 0), column_ok)
        tl.store(place + 2 * m, tl.sum(sum2, 0), column_ok)


@kernel
def _strip_sum(at, ok, stride, STRIPS: tl.constexpr):
    total = tl.load(at, ok, 0.0)
    for strip in tl.static_range(1, STRIPS):
        total += tl.load(at + strip * stride, ok, 0.0)
    return total


@kernel
def _many_inputs_kernel(
    x, of_narrow, pairs, of_x, of_pairs, b, m, rows_per_split,
    P: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WITH_X: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `_few_inputs_kernel`, by matrix units, of summed strips."""
    columns, p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    column_ok, p_ok = columns < m, p < P
    total = tl.zeros((BLOCK, PADDED), tl.float32)
    start = tl.program_id(1) * rows_per_split
    for first in range(start, min(start + rows_per_split, b), ROWS):
        rows = tl.arange(0, ROWS) + first
        row_ok = rows < b
        at, ok = places(x, rows, columns, m, row_ok, column_ok)
        tile = tl.load(at, ok, 0.0).to(tl.float32)
        h = tl.load(of_narrow + p[None, :] * b + rows[:, None], row_ok[:, None] & p_ok[None, :], 0.0)
        total += tl.dot(tl.trans(tile * tile), h, input_precision=PRECISION)
        if WITH_X:
            at, ok = places(of_x, rows, columns, m, row_ok, column_ok)
            slope = tl.zeros((ROWS, BLOCK), tl.float32)
            for q in tl.static_range(P):
                u = tl.load(pairs + q * m + columns, column_ok, 0.0)
                slope += tl.load(of_narrow + q * b + rows, row_ok, 0.0)[:, None] * u[None, :]
            tl.store(at, tl.load(at, ok, 0.0).to(tl.float32) + tile * slope, ok)
    place = (tl.program_id(1) * P + p[None, :]) * m + columns[:, None]
    tl.store(of_pairs + place, total, column_ok[:, None] & p_ok[None, :])


def fan_in_gradient(x: Tensor, of_narrow: Tensor, pairs: Tensor, of_x: Tensor | None) -> Tensor:
    """``(x²)ᵀ h VV`` as partial sums of shape (splits of rows, pairs, fan-in); adds to ``of_x``, if that is wanted."""
    (b, m), (strips, count, _) = x.shape, of_narrow.shape
    block = INPUT_BYTES // x.element_size()
    blocks = triton.cdiv(m, block)
    splits, pieces = splits_of(blocks, triton.cdiv(b, INPUT_ROWS), GRADIENT_PROGRAMS)
    of_pairs = of_narrow.new_empty(splits, count, m)
    few = count <= FEW_PAIRS
    chosen = _few_inputs_kernel if few else _many_inputs_kernel
    chosen[(blocks, splits)](
        x, of_narrow, pairs, x if of_x is None else of_x, of_pairs, b, m,
        pieces * INPUT_ROWS, P=count, ROWS=INPUT_ROWS, BLOCK=block, WITH_X=of_x is not None,
        **({"STRIPS": strips} if few else settings(x)),
    )  # fmt: skip
    return of_pairs
