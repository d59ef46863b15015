"""A Triton kernel for the whole forward pass of a small k-tied layer; imported only where Triton is installed.

A small layer's product takes hardly longer than to start a kernel: here it is one with its noise, not one of four.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.operators import by_matrix_units
from bayesrule.kernels.triton_jit import kernel
from bayesrule.kernels.triton_noise import PADDED, noise_of_bias, settings
from bayesrule.kernels.triton_normals import STRIP, four_parts, has_fast_sines, places, row_blocks_of

MOST_WEIGHTS = 1 << 19
"""Of a layer; a larger one's product takes so long that torch's own, the fastest, pays for the starts of others."""
INNER = 64
"""Inputs of a row at a time."""


@kernel
def _pairs_as_columns(logs, rows, ok, off_diagonal, K: tl.constexpr):
    """``f_a f_c`` of some rows of a factor, in the order of `pair_products`, beside columns of zeros."""
    p = tl.arange(0, PADDED)[None, :]
    found = tl.zeros((rows.shape[0], PADDED), tl.float32)
    for by in tl.static_range(K):
        for a in tl.static_range(K - by):
            product = tl.exp(tl.load(logs + rows * K + a, ok, 0.0) + tl.load(logs + rows * K + a + by, ok, 0.0))
            if by > 0:
                product *= off_diagonal
            found = tl.where(p == by * K - by * (by - 1) // 2 + a, tl.where(ok, product, 0.0)[:, None], found)
    return found


@kernel
def _store_pairs(at, pairs, rows, count, P: tl.constexpr):
    p = tl.arange(0, PADDED)[None, :]
    tl.store(at + p * count + rows[:, None], pairs, (p < P) & (rows[:, None] < count))


@kernel
def _under_each_other(first, second, third, fourth):
    """The tiles of four strips as that of their rows."""
    tiles = tl.join(tl.join(first, second), tl.join(third, fourth))
    return tl.permute(tiles, (3, 2, 0, 1)).reshape(4 * first.shape[0], first.shape[1])


@kernel
def _layer_kernel(
    x, weight, fan_in_logs, fan_out_logs, bias, bias_logs, seed_at, y, narrow, fan_in_pairs, fan_out_pairs, spread,
    b, m, n, group, tiny,
    K: tl.constexpr, P: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr,
    PRECISION: tl.constexpr, WITH_BIAS: tl.constexpr, RANDOM_BIAS: tl.constexpr,
):  # fmt: skip
    """``y = x Wᵀ + √(x² S²) ∘ ε + b`` of four strips of rows; and for the gradient x² UU, UU, VV and the bias's σ ∘ ε."""
    block = tl.program_id(0)
    rows, columns = block * 4 * STRIP + tl.arange(0, 4 * STRIP), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row_ok, column_ok, p = rows < b, columns < n, tl.arange(0, PADDED)
    total = tl.zeros((4 * STRIP, COLUMNS), tl.float32)
    t = tl.zeros((4 * STRIP, PADDED), tl.float32)
    for first in range(0, m, BLOCK):
        inner = first + tl.arange(0, BLOCK)
        inner_ok = inner < m
        at, ok = places(x, rows, inner, m, row_ok, inner_ok)
        tile = tl.load(at, ok, 0.0)
        at, ok = places(weight, columns, inner, m, column_ok, inner_ok)
        total = tl.dot(tile, tl.trans(tl.load(at, ok, 0.0)), total, input_precision=PRECISION)
        pairs = _pairs_as_columns(fan_in_logs, inner, inner_ok, 1.0, K)
        wide = tile.to(tl.float32)
        t = tl.dot(wide * wide, pairs, t, input_precision=PRECISION)
        if (tl.program_id(1) == 0) & (first // BLOCK % tl.num_programs(0) == block):
            _store_pairs(fan_in_pairs, pairs, inner, m, P)
    v = _pairs_as_columns(fan_out_logs, columns, column_ok, 2.0, K)
    if tl.program_id(1) == 0:
        tl.store(narrow + rows[:, None] * P + p[None, :], t, row_ok[:, None] & (p[None, :] < P))
    variance = tl.zeros((4 * STRIP, COLUMNS), tl.float32)
    for q in tl.static_range(P):
        left = tl.sum(tl.where(p[None, :] == q, t, 0.0), 1)
        variance += left[:, None] * tl.sum(tl.where(p[None, :] == q, v, 0.0), 1)[None, :]
    seed = tl.load(seed_at)
    shift = tl.zeros((COLUMNS,), tl.float32)
    if WITH_BIAS:
        shift += tl.load(bias + columns, column_ok, 0.0)
    if RANDOM_BIAS:
        of_bias = noise_of_bias(bias_logs, seed, n, group, columns, FAST)
        shift += of_bias
        if block == 0:
            tl.store(spread + columns, of_bias, column_ok)
    if block == 0:
        _store_pairs(fan_out_pairs, v, columns, n, P)
    squares, sides = four_parts(seed, block, columns, tl.zeros((STRIP, COLUMNS), tl.float32), FAST)
    square = _under_each_other(squares[0], squares[1], squares[2], squares[3])
    side = _under_each_other(sides[0], sides[1], sides[2], sides[3])
    noise = tl.sqrt(tl.maximum(variance, tiny) * square) * side
    at, ok = places(y, rows, columns, n, row_ok, column_ok)
    tl.store(at, total + (noise + shift[None, :]), ok)


def is_small(x: Tensor, weight: Tensor) -> bool:
    """Whether one kernel is the faster way through a layer: in full precision it has no matrix units."""
    return by_matrix_units(x) and weight.numel() <= MOST_WEIGHTS


def forward(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, bias: Tensor | None,
    bias_logs: Tensor | None, seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output, the narrow columns ``x² UU``, the pairs UU and VV as rows, and the bias less its mean."""
    (b, m), (n, rank) = x.shape, fan_out_logs.shape
    count, blocks, columns = rank * (rank + 1) // 2, row_blocks_of(b), min(64, max(16, triton.next_power_of_2(n)))
    y, narrow = x.new_empty(b, n), fan_in_logs.new_empty(b, count)
    pairs = fan_in_logs.new_empty(count, m), fan_in_logs.new_empty(count, n)
    spread = fan_in_logs.new_empty(0 if bias_logs is None else n)
    _layer_kernel[(blocks, triton.cdiv(n, columns))](
        x, weight, fan_in_logs, fan_out_logs, x if bias is None else bias, x if bias_logs is None else bias_logs, seed,
        y, narrow, *pairs, spread, b, m, n, blocks * STRIP.value, torch.finfo(torch.float32).tiny,
        K=rank, P=count, COLUMNS=columns, BLOCK=INNER, FAST=has_fast_sines(x), WITH_BIAS=bias is not None,
        RANDOM_BIAS=bias_logs is not None, num_warps=4, num_stages=4, **settings(x),
    )  # fmt: skip
    return y, narrow, *pairs, spread
