"""Triton kernels of the gradients of k-tied local noise; imported only where Triton is installed.

Sums over rows stay in registers while a program goes down its columns; programs leave partial sums, not atomics.
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
    PADDED,
    STRIP,
    four_normals,
    has_fast_sines,
    row_blocks_of,
    rows_of_strip,
    settings,
    splits_of,
    variance_of_tile,
)

FEW_PAIRS = 3
"""Of rank 2: so few are summed one by one, which spares a matrix unit's rearrangements."""
COLUMNS, FEWER_COLUMNS = 128, 64
"""Of a program; the fewer where matrix units need shared memory."""
INPUT_ROWS, INPUT_BLOCK = 32, 64


@kernel
def _tile_of(gradient, rows, columns, n, row_ok, column_ok):
    at = gradient + rows[:, None].to(tl.int64) * n + columns[None, :]
    return tl.load(at, row_ok[:, None] & column_ok[None, :], 0.0).to(tl.float32)


@kernel
def _scaled(g, normals, variance, tiny):
    """``h = g ∘ ε / std``, twice the gradient in the variance; zero where there is none."""
    return tl.where(variance >= tiny, g * normals * tl.rsqrt(tl.maximum(variance, tiny)), 0.0)


@kernel
def _few_pairs_kernel(
    gradient, narrow, pairs, seed_at, of_narrow, of_pairs, b, n, tiny, blocks, blocks_per_split,
    P: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr, WITH_BIAS: tl.constexpr,
):  # fmt: skip
    """``h VV`` of its columns for every row, ``hᵀ t`` and ``Σ g`` of its split of the rows; one or three pairs."""
    columns, p = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, 4)
    column_ok = columns < n
    seed = tl.load(seed_at)
    v0 = tl.load(pairs + columns, column_ok, 0.0)
    v1 = tl.load(pairs + n + columns, column_ok & (P > 1), 0.0)
    v2 = tl.load(pairs + 2 * n + columns, column_ok & (P > 1), 0.0)
    sum0 = tl.zeros((STRIP, COLUMNS), tl.float32)
    sum1 = tl.zeros((STRIP, COLUMNS), tl.float32)
    sum2 = tl.zeros((STRIP, COLUMNS), tl.float32)
    sum_g = tl.zeros((STRIP, COLUMNS), tl.float32)
    start = tl.program_id(1) * blocks_per_split
    for block in range(start, min(start + blocks_per_split, blocks)):
        normals = four_normals(seed, block, columns, FAST)
        for strip in tl.static_range(4):
            rows = rows_of_strip(block, strip)
            row_ok = rows < b
            t0 = tl.load(narrow + rows * P, row_ok, 0.0)
            variance = t0[:, None] * v0[None, :]
            if P > 1:
                t1 = tl.load(narrow + rows * P + 1, row_ok, 0.0)
                t2 = tl.load(narrow + rows * P + 2, row_ok, 0.0)
                variance += t1[:, None] * v1[None, :] + t2[:, None] * v2[None, :]
            g = _tile_of(gradient, rows, columns, n, row_ok, column_ok)
            if WITH_BIAS:
                sum_g += g
            scaled = _scaled(g, normals[strip], variance, tiny)
            sum0 += scaled * t0[:, None]
            shares = tl.sum(scaled * v0[None, :], 1)[:, None] + tl.zeros((1, 4), tl.float32)
            if P > 1:
                sum1 += scaled * t1[:, None]
                sum2 += scaled * t2[:, None]
                shares = tl.where(p[None, :] == 1, tl.sum(scaled * v1[None, :], 1)[:, None], shares)
                shares = tl.where(p[None, :] == 2, tl.sum(scaled * v2[None, :], 1)[:, None], shares)
            place = (tl.program_id(0) * b + rows[:, None]) * P + p[None, :]
            tl.store(of_narrow + place, shares, row_ok[:, None] & (p[None, :] < P))
    place = of_pairs + tl.program_id(1) * (P + WITH_BIAS) * n + columns
    tl.store(place, tl.sum(sum0, 0), column_ok)
    if P > 1:
        tl.store(place + n, tl.sum(sum1, 0), column_ok)
        tl.store(place + 2 * n, tl.sum(sum2, 0), column_ok)
    if WITH_BIAS:
        tl.store(place + P * n, tl.sum(sum_g, 0), column_ok)


@kernel
def _many_pairs_kernel(
    gradient, narrow, pairs, seed_at, of_narrow, of_pairs, b, n, tiny, blocks, blocks_per_split,
    P: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr, WITH_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """As `_few_pairs_kernel`, by matrix units."""
    columns, p = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PADDED)
    column_ok, p_ok = columns < n, p < P
    seed = tl.load(seed_at)
    v = tl.load(pairs + p[None, :] * n + columns[:, None], p_ok[None, :] & column_ok[:, None], 0.0)
    total = tl.zeros((COLUMNS, PADDED), tl.float32)
    sum_g = tl.zeros((STRIP, COLUMNS), tl.float32)
    start = tl.program_id(1) * blocks_per_split
    for block in range(start, min(start + blocks_per_split, blocks)):
        normals = four_normals(seed, block, columns, FAST)
        for strip in tl.static_range(4):
            rows = rows_of_strip(block, strip)
            row_ok = rows < b
            variance = variance_of_tile(narrow, pairs, rows, columns, n, row_ok, column_ok, P)
            g = _tile_of(gradient, rows, columns, n, row_ok, column_ok)
            if WITH_BIAS:
                sum_g += g
            scaled = _scaled(g, normals[strip], variance, tiny)
            ok = row_ok[:, None] & p_ok[None, :]
            t = tl.load(narrow + rows[:, None] * P + p[None, :], ok, 0.0)
            total += tl.dot(tl.trans(scaled), t, input_precision=PRECISION)
            place = (tl.program_id(0) * b + rows[:, None]) * P + p[None, :]
            tl.store(of_narrow + place, tl.dot(scaled, v, input_precision=PRECISION), ok)
    first = tl.program_id(1) * (P + WITH_BIAS)
    tl.store(of_pairs + (first + p[None, :]) * n + columns[:, None], total, column_ok[:, None] & p_ok[None, :])
    if WITH_BIAS:
        tl.store(of_pairs + (first + P) * n + columns, tl.sum(sum_g, 0), column_ok)


@kernel
def _input_kernel(
    x, of_narrow, pairs, of_x, of_pairs, b, m, rows_per_split,
    P: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WITH_X: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``∂x += x ∘ (h VV UUᵀ)``, and leaves ``(x²)ᵀ h VV`` of one split of the rows."""
    columns, p = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PADDED)
    column_ok, p_ok = columns < m, p < P
    total = tl.zeros((BLOCK, PADDED), tl.float32)
    start = tl.program_id(1) * rows_per_split
    for first in range(start, min(start + rows_per_split, b), ROWS):
        rows = tl.arange(0, ROWS) + first
        row_ok = rows < b
        ok = row_ok[:, None] & column_ok[None, :]
        at = rows[:, None].to(tl.int64) * m + columns[None, :]
        tile = tl.load(x + at, ok, 0.0).to(tl.float32)
        h = tl.load(of_narrow + rows[:, None] * P + p[None, :], row_ok[:, None] & p_ok[None, :], 0.0)
        total += tl.dot(tl.trans(tile * tile), h, input_precision=PRECISION)
        if WITH_X:
            slope = tile * variance_of_tile(of_narrow, pairs, rows, columns, m, row_ok, column_ok, P)
            tl.store(of_x + at, tl.load(of_x + at, ok, 0.0).to(tl.float32) + slope, ok)
    place = (tl.program_id(1) * P + p[None, :]) * m + columns[:, None]
    tl.store(of_pairs + place, total, column_ok[:, None] & p_ok[None, :])


@kernel
def _total(partial, first, stride, rows, ok, splits, BLOCK: tl.constexpr):
    """The sum over splits of one row of partial sums."""
    total = tl.zeros((BLOCK,), tl.float32)
    for split in range(splits):
        total += tl.load(partial + split * stride + first + rows, ok, 0.0)
    return total


@kernel
def _log_gradient(partial, pairs, out, count, stride, splits, block, K: tl.constexpr, BLOCK: tl.constexpr):
    """``∂/∂ log f_a = ½ Σ_c (1 + [a = c]) q_ac ∂_ac`` of some rows of a factor."""
    rows = block * BLOCK + tl.arange(0, BLOCK)
    ok = rows < count
    for a in tl.static_range(K):
        total = tl.zeros((BLOCK,), tl.float32)
        for c in tl.static_range(K):
            by = (c - a) if c > a else (a - c)
            p = by * K - by * (by - 1) // 2 + (a if c > a else c)
            share = _total(partial, p * count, stride, rows, ok, splits, BLOCK)
            weighted = share * tl.load(pairs + p * count + rows, ok, 0.0)
            total += weighted if a == c else 0.5 * weighted
        tl.store(out + rows * K + a, total, ok)


@kernel
def _finish_kernel(
    of_fan_in, of_fan_out, fan_in_pairs, fan_out_pairs, spread, fan_in_logs, fan_out_logs, bias, bias_logs,
    m, n, fan_in_splits, fan_out_splits,
    K: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr, WITH_BIAS: tl.constexpr, RANDOM_BIAS: tl.constexpr,
):  # fmt: skip
    """The gradients in the logarithms of both factors and in the bias, from partial sums."""
    block, of_rows, of_columns = tl.program_id(0), tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    if block < of_rows:
        _log_gradient(of_fan_in, fan_in_pairs, fan_in_logs, m, P * m, fan_in_splits, block, K, BLOCK)
    elif block < of_rows + of_columns:
        stride = (P + WITH_BIAS) * n
        _log_gradient(of_fan_out, fan_out_pairs, fan_out_logs, n, stride, fan_out_splits, block - of_rows, K, BLOCK)
    else:
        columns = (block - of_rows - of_columns) * BLOCK + tl.arange(0, BLOCK)
        ok = columns < n
        total = _total(of_fan_out, P * n, (P + 1) * n, columns, ok, fan_out_splits, BLOCK)
        tl.store(bias + columns, total, ok)
        if RANDOM_BIAS:
            tl.store(bias_logs + columns, total * tl.load(spread + columns, ok, 0.0), ok)


def noise_gradients(
    gradient: Tensor, x: Tensor, narrow: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor, spread: Tensor,
    seed: Tensor, rank: int, input_gradient: Tensor | None, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients in the logarithms of the factors, in the bias and in its logarithms, empty where there are none.

    The noise's part of the input's gradient is added in place, if that is wanted.
    """
    of_narrow, of_fan_out = _variance_gradient(gradient, narrow, fan_out_pairs, seed, with_bias)
    (b, m), n, count = x.shape, gradient.shape[1], fan_in_pairs.shape[0]
    blocks = triton.cdiv(m, INPUT_BLOCK)
    splits, pieces = splits_of(blocks, triton.cdiv(b, INPUT_ROWS))
    of_fan_in = narrow.new_empty(splits, count, m)
    _input_kernel[(blocks, splits)](
        x, of_narrow, fan_in_pairs, x if input_gradient is None else input_gradient, of_fan_in, b, m,
        pieces * INPUT_ROWS, P=count, ROWS=INPUT_ROWS, BLOCK=INPUT_BLOCK, WITH_X=input_gradient is not None,
        **settings(x),
    )  # fmt: skip
    block = 128
    bias = narrow.new_empty(n if with_bias else 0)
    found = narrow.new_empty(m, rank), narrow.new_empty(n, rank), bias, torch.empty_like(spread)
    programs = triton.cdiv(m, block) + triton.cdiv(n, block) + triton.cdiv(bias.numel(), block)
    _finish_kernel[(programs,)](
        of_fan_in, of_fan_out, fan_in_pairs, fan_out_pairs, spread, *found, m, n, splits, of_fan_out.shape[0],
        K=rank, P=count, BLOCK=block, WITH_BIAS=with_bias, RANDOM_BIAS=spread.numel() > 0,
    )  # fmt: skip
    return found


def _variance_gradient(
    gradient: Tensor, narrow: Tensor, pairs: Tensor, seed: Tensor, with_bias: bool
) -> tuple[Tensor, Tensor]:
    """``h VV``; and ``hᵀ t`` and the bias's gradient, if wanted, as partial sums of shape (splits, pairs, fan-out)."""
    (b, n), count = gradient.shape, pairs.shape[0]
    few = count <= FEW_PAIRS
    columns = COLUMNS if few else FEWER_COLUMNS
    strips, blocks = triton.cdiv(n, columns), row_blocks_of(b)
    splits, each = splits_of(strips, blocks)
    of_narrow, of_pairs = narrow.new_empty(strips, b, count), narrow.new_empty(splits, count + with_bias, n)
    chosen = _few_pairs_kernel if few else _many_pairs_kernel
    chosen[(strips, splits)](
        gradient, narrow, pairs, seed, of_narrow, of_pairs, b, n, torch.finfo(torch.float32).tiny, blocks, each,
        P=count, COLUMNS=columns, FAST=has_fast_sines(gradient), WITH_BIAS=with_bias, num_warps=8,
        **({} if few else settings(gradient)),
    )  # fmt: skip
    return (of_narrow.sum(0) if strips > 1 else of_narrow[0]), of_pairs
