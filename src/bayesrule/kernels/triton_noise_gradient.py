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

from bayesrule.kernels.triton_input_gradient import FEW_PAIRS, GRADIENT_PROGRAMS, fan_in_gradient
from bayesrule.kernels.triton_jit import kernel
from bayesrule.kernels.triton_noise import PADDED, settings, splits_of, tile_columns, variance_of_tile
from bayesrule.kernels.triton_normals import STRIP, four_parts, four_tiles, has_fast_sines, row_blocks_of, rows_of_strip

FEW_PAIRS_REGISTERS = 128
"""Of a thread: as few as it can do with, so that a processor holds more programs."""
FEW_STRIPS = 16
"""So many partial sums of each row are summed by every program that needs them, which spares a launch."""


@kernel
def _scaled(g, square, side, variance, tiny):
    """``h = g ∘ ε / std``, twice the gradient in the variance; zero where there is none.

    ``ε / std`` is a cosine or sine times ``√(square / variance)``.
    """
    product = square * variance
    return tl.where(product >= tiny, g * side * (square * tl.rsqrt(product)), 0.0)


@kernel
def _store_shares(at, shares, block, b, P: tl.constexpr):
    """Of all four strips at once: every store has to rearrange what it takes. Axes: rows, (pairs,) strips, strips."""
    row = block * 4 * STRIP + tl.arange(0, STRIP)
    two = tl.arange(0, 2)
    if P == 1:
        rows = row[:, None, None] + STRIP * (two[None, :, None] + 2 * two[None, None, :])
        tl.store(at + rows, shares, rows < b)
    else:
        strips = two[None, None, None, :, None] + 2 * two[None, None, None, None, :]
        rows = row[:, None, None, None, None] + STRIP * strips
        pair = two[None, None, :, None, None] + 2 * two[None, :, None, None, None]
        tl.store(at + pair * b + rows, shares, (rows < b) & (pair < P))


@kernel
def _few_pairs_kernel(
    gradient, narrow, pairs, seed_at, of_narrow, of_pairs, b, n, tiny, blocks, blocks_per_split,
    P: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr, WITH_BIAS: tl.constexpr,
):  # fmt: skip
    """``h VV`` of its columns for every row, ``hᵀ t`` and ``Σ g`` of its split of the rows; one or three pairs."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
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
        tiles = four_tiles(gradient, block, columns, n, b, column_ok)
        squares, sides = four_parts(seed, block, columns, tiles[0], FAST)
        for strip in tl.static_range(4):
            rows = rows_of_strip(block, strip)
            row_ok = rows < b
            t0 = tl.load(narrow + rows * P, row_ok, 0.0)
            variance = t0[:, None] * v0[None, :]
            if P > 1:
                t1 = tl.load(narrow + rows * P + 1, row_ok, 0.0)
                t2 = tl.load(narrow + rows * P + 2, row_ok, 0.0)
                variance += t1[:, None] * v1[None, :] + t2[:, None] * v2[None, :]
            g = tiles[strip].to(tl.float32)
            if WITH_BIAS:
                sum_g += g
            scaled = _scaled(g, squares[strip], sides[strip], variance, tiny)
            sum0 += scaled * t0[:, None]
            shares = tl.sum(scaled * v0[None, :], 1)
            if P > 1:
                sum1 += scaled * t1[:, None]
                sum2 += scaled * t2[:, None]
                more = tl.join(tl.sum(scaled * v1[None, :], 1), tl.zeros_like(shares))
                shares = tl.join(tl.join(shares, tl.sum(scaled * v2[None, :], 1)), more)
            if strip == 0:
                first = shares
            elif strip == 1:
                first = tl.join(first, shares)
            elif strip == 2:
                second = shares
            else:
                second = tl.join(second, shares)
        _store_shares(of_narrow + tl.program_id(0) * P * b, tl.join(first, second), block, b, P)
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
        tiles = four_tiles(gradient, block, columns, n, b, column_ok)
        squares, sides = four_parts(seed, block, columns, tiles[0], FAST)
        for strip in tl.static_range(4):
            rows = rows_of_strip(block, strip)
            row_ok = rows < b
            variance = variance_of_tile(narrow, pairs, rows, columns, n, row_ok, column_ok, P)
            g = tiles[strip].to(tl.float32)
            if WITH_BIAS:
                sum_g += g
            scaled = _scaled(g, squares[strip], sides[strip], variance, tiny)
            ok = row_ok[:, None] & p_ok[None, :]
            t = tl.load(narrow + rows[:, None] * P + p[None, :], ok, 0.0)
            total += tl.dot(tl.trans(scaled), t, input_precision=PRECISION)
            place = (tl.program_id(0) * P + p[None, :]) * b + rows[:, None]
            tl.store(of_narrow + place, tl.dot(scaled, v, input_precision=PRECISION), ok)
    first = tl.program_id(1) * (P + WITH_BIAS)
    tl.store(of_pairs + (first + p[None, :]) * n + columns[:, None], total, column_ok[:, None] & p_ok[None, :])
    if WITH_BIAS:
        tl.store(of_pairs + (first + P) * n + columns, tl.sum(sum_g, 0), column_ok)


@kernel
def _total(partial, first, stride, rows, ok, splits, SPLITS: tl.constexpr):
    """The sum over splits of one row of partial sums, all on their way at once."""
    split = tl.arange(0, SPLITS)
    at = partial + split[:, None] * stride + first + rows[None, :]
    return tl.sum(tl.load(at, (split[:, None] < splits) & ok[None, :], 0.0), 0)


@kernel
def _log_gradient(
    partial, pairs, out, count, stride, splits, block,
    K: tl.constexpr, PADDED_K: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``∂/∂ log f_a = ½ Σ_c (1 + [a = c]) q_ac ∂_ac`` of some rows of a factor."""
    rows, k = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PADDED_K)[:, None]
    ok = rows < count
    total = tl.zeros((PADDED_K, BLOCK), tl.float32)
    for by in tl.static_range(K):
        for a in tl.static_range(K - by):
            p = by * K - by * (by - 1) // 2 + a
            share = _total(partial, p * count, stride, rows, ok, splits, SPLITS)
            weighted = (share * tl.load(pairs + p * count + rows, ok, 0.0))[None, :]
            total += tl.where(k == a, 0.5 * weighted, 0.0) + tl.where(k == a + by, 0.5 * weighted, 0.0)
    tl.store(out + rows[None, :] * K + k, total, ok[None, :] & (k < K))


@kernel
def _finish_kernel(
    of_fan_in, of_fan_out, fan_in_pairs, fan_out_pairs, spread, fan_in_logs, fan_out_logs, bias, bias_logs,
    m, n, fan_in_splits, fan_out_splits,
    K: tl.constexpr, PADDED_K: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr,
    FAN_IN_SPLITS: tl.constexpr, FAN_OUT_SPLITS: tl.constexpr, WITH_BIAS: tl.constexpr, RANDOM_BIAS: tl.constexpr,
):  # fmt: skip
    """The gradients in the logarithms of both factors and in the bias, from partial sums."""
    block, of_rows, of_columns = tl.program_id(0), tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    stride = (P + WITH_BIAS) * n
    if block < of_rows:
        _log_gradient(
            of_fan_in, fan_in_pairs, fan_in_logs, m, P * m, fan_in_splits, block, K, PADDED_K, FAN_IN_SPLITS, BLOCK
        )
    elif block < of_rows + of_columns:
        _log_gradient(
            of_fan_out, fan_out_pairs, fan_out_logs, n, stride, fan_out_splits, block - of_rows,
            K, PADDED_K, FAN_OUT_SPLITS, BLOCK,
        )  # fmt: skip
    else:
        columns = (block - of_rows - of_columns) * BLOCK + tl.arange(0, BLOCK)
        ok = columns < n
        total = _total(of_fan_out, P * n, stride, columns, ok, fan_out_splits, FAN_OUT_SPLITS)
        tl.store(bias + columns, total, ok)
        if RANDOM_BIAS:
            tl.store(bias_logs + columns, total * tl.load(spread + columns, ok, 0.0), ok)


def noise_gradients(
    partial: tuple[Tensor, Tensor], x: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor, spread: Tensor, rank: int,
    input_gradient: Tensor | None, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients in the logarithms of the factors, in the bias and in its logarithms, empty where there are none.

    They are made of what `variance_gradient` finds. The noise's part of the input's gradient is added in place, if
    that is wanted.
    """
    of_narrow, of_fan_out = partial
    of_fan_in = fan_in_gradient(x, of_narrow, fan_in_pairs, input_gradient)
    (count, m), n, block, like = fan_in_pairs.shape, fan_out_pairs.shape[1], 32, of_narrow
    bias = like.new_empty(n if with_bias else 0)
    found = like.new_empty(m, rank), like.new_empty(n, rank), bias, torch.empty_like(spread)
    programs = triton.cdiv(m, block) + triton.cdiv(n, block) + triton.cdiv(bias.numel(), block)
    splits = of_fan_in.shape[0], of_fan_out.shape[0]
    _finish_kernel[(programs,)](
        of_fan_in, of_fan_out, fan_in_pairs, fan_out_pairs, spread, *found, m, n, *splits,
        K=rank, PADDED_K=triton.next_power_of_2(rank), P=count, BLOCK=block,
        FAN_IN_SPLITS=triton.next_power_of_2(splits[0]), FAN_OUT_SPLITS=triton.next_power_of_2(splits[1]),
        WITH_BIAS=with_bias, RANDOM_BIAS=spread.numel() > 0,
    )  # fmt: skip
    return found


def variance_gradient(
    gradient: Tensor, narrow: Tensor, pairs: Tensor, seed: Tensor, with_bias: bool
) -> tuple[Tensor, Tensor]:
    """``h VV``; and ``hᵀ t`` and the bias's gradient, if wanted; as partial sums.

    They have shapes (strips of columns, pairs, rows) and (splits of rows, pairs, fan-out).
    """
    (b, n), count, blocks = gradient.shape, pairs.shape[0], row_blocks_of(gradient.shape[0])
    few = count <= FEW_PAIRS
    columns = tile_columns(blocks, n)
    strips = triton.cdiv(n, columns)
    splits, each = splits_of(strips, blocks, GRADIENT_PROGRAMS)
    of_narrow, of_pairs = narrow.new_empty(strips, count, b), narrow.new_empty(splits, count + with_bias, n)
    fast = has_fast_sines(gradient)
    chosen = _few_pairs_kernel if few else _many_pairs_kernel
    options: dict[str, object] = {"num_stages": 1, **settings(gradient)}
    if few:
        options = {"maxnreg": FEW_PAIRS_REGISTERS} if fast else {}
    chosen[(strips, splits)](
        gradient, narrow, pairs, seed, of_narrow, of_pairs, b, n, torch.finfo(torch.float32).tiny, blocks, each,
        P=count, COLUMNS=columns, FAST=fast, WITH_BIAS=with_bias, num_warps=columns // 16, **options,
    )  # fmt: skip
    if strips <= (FEW_STRIPS if few else 1):
        return of_narrow, of_pairs
    return of_narrow.sum(0, keepdim=True), of_pairs
