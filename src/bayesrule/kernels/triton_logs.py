"""A Triton kernel for sums over ``S = U Vᵀ`` of logarithms and squares; imported only where Triton is installed."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from bayesrule.kernels.triton_jit import kernel
from bayesrule.kernels.triton_noise import has_fast_sines

TILE, SMALL_TILE = (16, 128), (4, 512)
"""Rows of a program and columns at a time; fewer rows where there are few, so that all processors have some."""
FEW_ROWS = 4096
CHUNK, STEP = 8192, 2048
"""Entries of the mean that a program squares, and how many of them at a time."""


@kernel
def _factor(values, index, ok, LOGARITHMS: tl.constexpr):
    if LOGARITHMS:
        return tl.exp(tl.load(values + index, ok, 0.0))
    else:  # noqa: RET505, Triton compiles one of the two
        return tl.load(values + index, ok, 1.0)


@kernel
def _inverse(s, FAST: tl.constexpr):
    """To one unit in the last place where it is fast."""
    if FAST:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [s], tl.float32, True, 1)
    else:  # noqa: RET505
        return 1.0 / s


@kernel
def _logarithm(s, FAST: tl.constexpr):
    """Near one to 2⁻²² where it is fast, which a sum does not see."""
    if FAST:
        return libdevice.fast_log2f(s) * 0.6931472
    else:  # noqa: RET505
        return tl.log(s)


@kernel
def _sum_rows(
    left, right, gradient, partial, m, n, block, of_square, of_log, constant,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOGARITHMS: tl.constexpr, VALUE: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """For some rows of S: ``f(s) = p s² + q log s + c`` summed, and the gradients in two columns of U.

    Columns beyond the last have positive entries, so that nothing is infinite, and no weight.
    """
    rows, first = block * ROWS + tl.arange(0, ROWS), 2 * tl.program_id(1)
    row_ok = rows < m
    second = tl.minimum(first + 1, K - 1)
    u = _factor(left, rows * K + first, row_ok, LOGARITHMS)
    more_u = _factor(left, rows * K + second, row_ok, LOGARITHMS)
    slopes, more_slopes = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    value = tl.zeros((ROWS, BLOCK), tl.float32)
    ratio = 2.0 * of_square / of_log
    for start in range(0, n, BLOCK):
        columns = tl.arange(0, BLOCK) + start
        column_ok = columns < n
        weight = tl.where(column_ok, 1.0, 0.0)
        v = _factor(right, columns * K + first, column_ok, LOGARITHMS)
        more_v = _factor(right, columns * K + second, column_ok, LOGARITHMS)
        s = u[:, None] * v[None, :]
        if K == 2:
            s += more_u[:, None] * more_v[None, :]
        if K > 2:
            s += tl.where(second > first, more_u[:, None] * more_v[None, :], 0.0)
            for a in tl.static_range(K):
                other_u = _factor(left, rows * K + a, row_ok, LOGARITHMS)
                other_v = _factor(right, columns * K + a, column_ok, LOGARITHMS)
                s += tl.where((a == first) | (a == second), 0.0, other_u[:, None] * other_v[None, :])
        slope = ratio * s + _inverse(s, FAST)
        slopes += slope * (weight * v)[None, :]
        if K > 1:
            more_slopes += slope * (weight * more_v)[None, :]
        if VALUE:
            value += weight[None, :] * (of_square * s * s + of_log * _logarithm(s, FAST))
    total = of_log * tl.sum(slopes, 1)
    if LOGARITHMS:
        total *= u
    tl.store(gradient + rows * K + first, total, row_ok)
    if K > 1:
        more = of_log * tl.sum(more_slopes, 1)
        if LOGARITHMS:
            more *= more_u
        tl.store(gradient + rows * K + second, more, row_ok & (second > first))
    if VALUE:
        values = tl.where(row_ok, tl.sum(value, 1) + n * constant, 0.0)
        tl.store(partial + block, tl.sum(values, 0), first == 0)


@kernel
def _sum_squares(mean, partial, size, block, of_square, SQUARED: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr):
    total = tl.zeros((STEP,), tl.float32)
    for start in tl.static_range(0, CHUNK, STEP):
        index = block.to(tl.int64) * CHUNK + start + tl.arange(0, STEP)
        entries = tl.load(mean + index, index < size, 0.0)
        total += entries if SQUARED else entries * entries
    tl.store(partial + block, of_square * tl.sum(total, 0))


@partial(kernel, general=("m", "n"))
def _sum_kernel(
    left, right, mean, of_left, of_right, partial, m, n, size, of_square, of_log, constant,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOGARITHMS: tl.constexpr,
    SQUARED: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Rows of S, rows of ``Sᵀ`` (to make S twice costs less than to sum it both ways), and chunks of the mean."""
    block, of_rows, of_columns = tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, ROWS)
    if block < of_rows:
        _sum_rows(
            left, right, of_left, partial, m, n, block, of_square, of_log, constant,
            K, ROWS, BLOCK, LOGARITHMS, True, FAST,
        )  # fmt: skip
    elif block < of_rows + of_columns:
        _sum_rows(
            right, left, of_right, partial, n, m, block - of_rows, of_square, of_log, constant,
            K, ROWS, BLOCK, LOGARITHMS, False, FAST,
        )  # fmt: skip
    elif tl.program_id(1) == 0:
        _sum_squares(mean, partial + of_rows, size, block - of_rows - of_columns, of_square, SQUARED, CHUNK, STEP)


def _sums(
    left: Tensor,
    right: Tensor,
    mean: Tensor | None,
    numbers: tuple[float, float, float],
    *,
    logarithms: bool,
    squared: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    (m, rank), n = left.shape, right.shape[0]
    size, (height, width) = 0 if mean is None else mean.numel(), TILE if m + n > FEW_ROWS else SMALL_TILE
    rows, chunks = triton.cdiv(m, height), triton.cdiv(size, CHUNK)
    partial, of_left, of_right = left.new_empty(rows + chunks), torch.empty_like(left), torch.empty_like(right)
    _sum_kernel[(rows + triton.cdiv(n, height) + chunks, triton.cdiv(rank, 2))](
        left, right, left if mean is None else mean, of_left, of_right, partial, m, n, size, *numbers,
        K=rank, ROWS=height, BLOCK=width, LOGARITHMS=logarithms, SQUARED=squared, CHUNK=CHUNK, STEP=STEP,
        FAST=has_fast_sines(left),
    )  # fmt: skip
    return partial.sum(), of_left, of_right


def sum_log(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``Σ log(U Vᵀ)`` and its gradients, for contiguous float32 factors (m, k) and (n, k)."""
    return _sums(left, right, None, (0.0, 1.0, 0.0), logarithms=False)


def divergence(
    left: Tensor, right: Tensor, mean: Tensor | None, squared: bool, precision: float, constant: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``Σ ½τS² − log S + c``, and ``½τ Σ mean²``, with the gradients in the factors' logarithms, which it takes."""
    return _sums(left, right, mean, (0.5 * precision, -1.0, constant), logarithms=True, squared=squared)
