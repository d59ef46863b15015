"""A Triton kernel for sums over ``S = U Vᵀ`` of logarithms and squares; imported only where Triton is installed."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.triton_jit import kernel

ROWS, BLOCK = 16, 128
CHUNK, STEP = 8192, 2048
"""Entries of the mean that a program squares, and how many of them at a time."""


@kernel
def _factor(values, index, ok, LOGARITHMS: tl.constexpr):
    if LOGARITHMS:
        return tl.exp(tl.load(values + index, ok, 0.0))
    else:  # noqa: RET505, Triton compiles one of the two
        return tl.load(values + index, ok, 1.0)


@kernel
def _sum_rows(
    left, right, gradient, partial, m, n, block, of_square, of_log, constant,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOGARITHMS: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """For some rows of S: ``f(s) = p s² + q log s + c`` summed, and the gradients in two columns of U."""
    rows, first = block * ROWS + tl.arange(0, ROWS), 2 * tl.program_id(1)
    second = tl.minimum(first + 1, K - 1)
    row_ok = rows < m
    u, more_u = (
        _factor(left, rows * K + first, row_ok, LOGARITHMS),
        _factor(left, rows * K + second, row_ok, LOGARITHMS),
    )
    slopes, more_slopes = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    value = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, n, BLOCK):
        columns = tl.arange(0, BLOCK) + start
        column_ok = columns < n
        v = _factor(right, columns * K + first, column_ok, LOGARITHMS)
        more_v = _factor(right, columns * K + second, column_ok, LOGARITHMS)
        s = u[:, None] * v[None, :]
        if K > 1:
            s += tl.where(second > first, more_u[:, None] * more_v[None, :], 0.0)
        if K > 2:
            for a in tl.static_range(K):
                other_u = _factor(left, rows * K + a, row_ok, LOGARITHMS)
                other_v = _factor(right, columns * K + a, column_ok, LOGARITHMS)
                s += tl.where((a == first) | (a == second), 0.0, other_u[:, None] * other_v[None, :])
        ok = row_ok[:, None] & column_ok[None, :]
        slope = tl.where(ok, 2.0 * of_square * s + of_log / s, 0.0)
        slopes += slope * v[None, :]
        if K > 1:
            more_slopes += slope * more_v[None, :]
        if VALUE:
            value += tl.where(ok, of_square * s * s + of_log * tl.log(s) + constant, 0.0)
    total, more = tl.sum(slopes, 1), tl.sum(more_slopes, 1)
    if LOGARITHMS:
        total, more = total * u, more * more_u
    tl.store(gradient + rows * K + first, total, row_ok)
    if K > 1:
        tl.store(gradient + rows * K + second, more, row_ok & (second > first))
    if VALUE:
        tl.store(partial + block, tl.sum(tl.sum(value, 1), 0), first == 0)


@kernel
def _sum_squares(mean, partial, size, block, of_square, SQUARED: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr):
    total = tl.zeros((STEP,), tl.float32)
    for start in tl.static_range(0, CHUNK, STEP):
        index = block.to(tl.int64) * CHUNK + start + tl.arange(0, STEP)
        entries = tl.load(mean + index, index < size, 0.0)
        total += entries if SQUARED else entries * entries
    tl.store(partial + block, of_square * tl.sum(total, 0))


@kernel
def _sum_kernel(
    left, right, mean, of_left, of_right, partial, m, n, size, of_square, of_log, constant,
    K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOGARITHMS: tl.constexpr,
    SQUARED: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Rows of S, rows of ``Sᵀ`` (to make S twice costs less than to sum it both ways), and chunks of the mean."""
    block, of_rows, of_columns = tl.program_id(0), tl.cdiv(m, ROWS), tl.cdiv(n, ROWS)
    if block < of_rows:
        _sum_rows(
            left, right, of_left, partial, m, n, block, of_square, of_log, constant, K, ROWS, BLOCK, LOGARITHMS, True
        )
    elif block < of_rows + of_columns:
        _sum_rows(
            right, left, of_right, partial, n, m, block - of_rows, of_square, of_log, constant,
            K, ROWS, BLOCK, LOGARITHMS, False,
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
    size = 0 if mean is None else mean.numel()
    rows, chunks = triton.cdiv(m, ROWS), triton.cdiv(size, CHUNK)
    partial, of_left, of_right = left.new_empty(rows + chunks), torch.empty_like(left), torch.empty_like(right)
    _sum_kernel[(rows + triton.cdiv(n, ROWS) + chunks, triton.cdiv(rank, 2))](
        left, right, left if mean is None else mean, of_left, of_right, partial, m, n, size, *numbers,
        K=rank, ROWS=ROWS, BLOCK=BLOCK, LOGARITHMS=logarithms, SQUARED=squared, CHUNK=CHUNK, STEP=STEP,
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
