"""Triton kernels of k-tied local noise; imported only where Triton is installed and the tensors are on a GPU.

Noise is made from a seed in device memory; the backward pass makes it again.
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
from bayesrule.kernels.triton_normals import (
    STRIP,
    four_normals,
    four_parts,
    four_tiles,
    has_fast_sines,
    philox,
    places,
    row_blocks_of,
    rows_of_strip,
    two_parts,
)

__all__ = [
    "add_noise",
    "four_normals",
    "has_fast_sines",
    "narrow_columns",
    "normals",
    "prepare",
    "row_blocks_of",
    "rows_of_strip",
]

PADDED = tl.constexpr(16)
"""Pairs of columns, padded to what a matrix unit takes: ranks up to 5."""
PROGRAMS = 512
"""About how many a launch should have: a few for each processor of the largest GPUs."""
NARROW_ROWS, NARROW_BLOCK = 32, 128
FEW_PIECES, ENOUGH_PROGRAMS = 8, 128
"""Where a loop over inputs is so short, or so many programs go through it, parts of it would not pay their sum."""


@kernel
def variance_of_tile(narrow, pairs, rows, columns, n, row_ok, column_ok, P: tl.constexpr):
    """``Σ_p t_ip v_pj``."""
    total = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for p in tl.static_range(P):
        t = tl.load(narrow + rows * P + p, row_ok, 0.0)
        v = tl.load(pairs + p * n + columns, column_ok, 0.0)
        total += t[:, None] * v[None, :]
    return total


@kernel
def _pairs_of(logs, out, count, block, off_diagonal, K: tl.constexpr, BLOCK: tl.constexpr):
    """``f_a f_c`` of some rows of a factor, in the order of `pair_products`."""
    rows = block * BLOCK + tl.arange(0, BLOCK)
    ok = rows < count
    for by in tl.static_range(K):
        for a in tl.static_range(K - by):
            product = tl.exp(tl.load(logs + rows * K + a, ok, 0.0) + tl.load(logs + rows * K + a + by, ok, 0.0))
            p = by * K - by * (by - 1) // 2 + a
            if by > 0:
                product *= off_diagonal
            tl.store(out + p * count + rows, product, ok)


@kernel
def _bias_noise(logs, spread, seed, n, group, block, BLOCK: tl.constexpr, FAST: tl.constexpr):
    """``σ ∘ ε`` of some columns, the noise that of a row beyond all others."""
    columns = block * BLOCK + tl.arange(0, BLOCK)
    bits = philox(seed, columns, tl.zeros_like(columns) + group)
    parts = two_parts(bits[0], bits[1], FAST)
    std = tl.exp(tl.load(logs + columns, columns < n, 0.0))
    tl.store(spread + columns, std * tl.sqrt(parts[0]) * parts[1], columns < n)


@kernel
def _prepare_kernel(
    fan_in, fan_out, fan_in_pairs, fan_out_pairs, bias_logs, bias_spread, seed_at, m, n, group,
    K: tl.constexpr, BLOCK: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The pairs of both factors, of which one of the fan-out stands for both its orders; and the bias's noise."""
    block, of_rows, of_columns = tl.program_id(0), tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    if block < of_rows:
        _pairs_of(fan_in, fan_in_pairs, m, block, 1.0, K, BLOCK)
    elif block < of_rows + of_columns:
        _pairs_of(fan_out, fan_out_pairs, n, block - of_rows, 2.0, K, BLOCK)
    else:
        _bias_noise(bias_logs, bias_spread, tl.load(seed_at), n, group, block - of_rows - of_columns, BLOCK, FAST)


@kernel
def _narrow_kernel(
    x, pairs, out, b, m, per_split, P: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):
    """``t = x² UU``, over one split of the columns of x."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    p = tl.arange(0, PADDED)
    total = tl.zeros((ROWS, PADDED), tl.float32)
    start = tl.program_id(1) * per_split
    for first in range(start, min(start + per_split, m), BLOCK):
        columns = tl.arange(0, BLOCK) + first
        ok = (rows[:, None] < b) & (columns[None, :] < m)
        tile = tl.load(x + rows[:, None].to(tl.int64) * m + columns[None, :], ok, 0.0).to(tl.float32)
        factor = tl.load(pairs + p[None, :] * m + columns[:, None], (p[None, :] < P) & (columns[:, None] < m), 0.0)
        total += tl.dot(tile * tile, factor, input_precision=PRECISION)
    place = (tl.program_id(1) * b + rows[:, None]) * P + p[None, :]
    tl.store(out + place, total, (rows[:, None] < b) & (p[None, :] < P))


@kernel
def _noise_kernel(
    y, narrow, pairs, bias, bias_spread, seed_at, b, n, tiny,
    P: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr, REPLACE: tl.constexpr,
    WITH_BIAS: tl.constexpr, RANDOM_BIAS: tl.constexpr,
):  # fmt: skip
    """``y += √(t VVᵀ) ∘ ε`` and the bias, for four strips of rows; or ``y = ε``."""
    block = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    column_ok = columns < n
    seed = tl.load(seed_at)
    if REPLACE:
        normals = four_normals(seed, block, columns, FAST)
        for strip in tl.static_range(4):
            rows = rows_of_strip(block, strip)
            at, ok = places(y, rows, columns, n, rows < b, column_ok)
            tl.store(at, normals[strip], ok)
    else:
        shift = tl.zeros((COLUMNS,), tl.float32)
        if WITH_BIAS:
            shift += tl.load(bias + columns, column_ok, 0.0)
        if RANDOM_BIAS:
            shift += tl.load(bias_spread + columns, column_ok, 0.0)
        tiles = four_tiles(y, block, columns, n, b, column_ok)
        squares, sides = four_parts(seed, block, columns, tiles[0], FAST)
        for strip in tl.static_range(4):
            rows = rows_of_strip(block, strip)
            row_ok = rows < b
            at, ok = places(y, rows, columns, n, row_ok, column_ok)
            variance = variance_of_tile(narrow, pairs, rows, columns, n, row_ok, column_ok, P)
            noise = tl.sqrt(tl.maximum(variance, tiny) * squares[strip]) * sides[strip]
            tl.store(at, tiles[strip].to(tl.float32) + (noise + shift[None, :]), ok)


def settings(x: Tensor) -> dict[str, object]:
    """Of products in kernels."""
    return {"PRECISION": "tf32" if by_matrix_units(x) else "ieee"}


def tile_columns(row_blocks: int, n: int) -> int:
    """Of a program on tiles; 16 to a warp, fewer than its threads: then tiles and vectors lie alike in registers."""
    return 64 if row_blocks * triton.cdiv(n, 64) >= PROGRAMS else 32


def splits_of(blocks: int, pieces: int, programs: int = PROGRAMS) -> tuple[int, int]:
    """Into how many parts to cut a loop over ``pieces``, given ``blocks`` programs, and how many pieces each has."""
    each = triton.cdiv(pieces, max(1, min(pieces, programs // max(1, blocks))))
    return triton.cdiv(pieces, each), each


def prepare(
    fan_in_logs: Tensor, fan_out_logs: Tensor, bias_logs: Tensor | None, seed: Tensor, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The products of the columns of both factors in pairs, as rows, and the bias's noise, from their logarithms."""
    (m, rank), n, block = fan_in_logs.shape, fan_out_logs.shape[0], 256
    count, logs = rank * (rank + 1) // 2, fan_in_logs if bias_logs is None else bias_logs
    pairs = fan_in_logs.new_empty(count, m), fan_in_logs.new_empty(count, n)
    spread = fan_in_logs.new_empty(0 if bias_logs is None else n)
    programs = triton.cdiv(m, block) + triton.cdiv(n, block) + triton.cdiv(spread.numel(), block)
    _prepare_kernel[(programs,)](
        fan_in_logs, fan_out_logs, *pairs, logs, spread, seed, m, n, row_blocks_of(rows) * STRIP.value,
        K=rank, BLOCK=block, FAST=has_fast_sines(logs),
    )  # fmt: skip
    return *pairs, spread


def narrow_columns(x: Tensor, fan_in_pairs: Tensor) -> Tensor:
    """``x² UU``, of pairs as rows of float32."""
    (b, m), count = x.shape, fan_in_pairs.shape[0]
    blocks = triton.cdiv(b, NARROW_ROWS)
    splits, pieces = 1, triton.cdiv(m, NARROW_BLOCK)
    if pieces > FEW_PIECES and blocks < ENOUGH_PROGRAMS:
        splits, pieces = splits_of(blocks, pieces)
    narrow = x.new_empty(splits, b, count, dtype=torch.float32)
    _narrow_kernel[(blocks, splits)](
        x, fan_in_pairs, narrow, b, m, pieces * NARROW_BLOCK,
        P=count, ROWS=NARROW_ROWS, BLOCK=NARROW_BLOCK, **settings(x),
    )  # fmt: skip
    return narrow.sum(0) if splits > 1 else narrow[0]


def add_noise(
    y: Tensor, narrow: Tensor, fan_out_pairs: Tensor, bias: Tensor | None, spread: Tensor, seed: Tensor
) -> None:
    """Add noise and bias to ``y`` in place, from the narrow columns."""
    _add_noise(y, narrow, fan_out_pairs, bias, spread, seed, fan_out_pairs.shape[0], replace=False)


def normals(seed: Tensor, b: int, n: int) -> Tensor:
    """The noise that `add_noise` takes from this seed."""
    out = torch.empty(b, n, dtype=torch.float32, device=seed.device)
    _add_noise(out, out, out, None, out[:0], seed, 1, replace=True)
    return out


def _add_noise(
    y: Tensor, narrow: Tensor, pairs: Tensor, bias: Tensor | None, spread: Tensor, seed: Tensor, count: int, *,
    replace: bool,
) -> None:  # fmt: skip
    (b, n), blocks = y.shape, row_blocks_of(y.shape[0])
    columns = tile_columns(blocks, n)
    _noise_kernel[(blocks, triton.cdiv(n, columns))](
        y, narrow, pairs, pairs if bias is None else bias, spread, seed, b, n, torch.finfo(torch.float32).tiny,
        P=count, COLUMNS=columns, FAST=has_fast_sines(y), REPLACE=replace,
        WITH_BIAS=bias is not None, RANDOM_BIAS=spread.numel() > 0, num_warps=columns // 16,
    )  # fmt: skip
