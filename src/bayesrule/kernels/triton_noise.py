"""Triton kernels of k-tied local noise; imported only where Triton is installed and the tensors are on a GPU.

Noise is made from a seed in device memory by Philox, four normals a call, one for each of four neighbouring strips of
columns; the backward pass makes it again. Reductions stay in registers, and programs leave partial sums, not atomics.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from bayesrule.kernels.triton_jit import kernel

STRIP = tl.constexpr(64)
"""Columns of a strip; the noise of a seed depends on it."""
PADDED = tl.constexpr(16)
"""Pairs of columns, padded to what a matrix unit takes: ranks up to 5."""
ROUNDS = tl.constexpr(7)
"""Of Philox-4x32: seven pass every test of randomness that ten pass."""


@kernel
def _two_normals(bits_radius, bits_angle, FAST: tl.constexpr):
    """Box–Muller, the uniform of the radius in (0, 1) and the angle in [−π, π)."""
    uniform = (bits_radius >> 8).to(tl.float32) * 5.9604645e-08 + 2.9802322e-08
    angle = ((bits_angle >> 8).to(tl.float32) - 8388608.0) * 3.7450704e-07
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    if FAST:
        return radius * libdevice.fast_cosf(angle), radius * libdevice.fast_sinf(angle)
    else:  # noqa: RET505, Triton compiles one of the two
        return radius * tl.cos(angle), radius * tl.sin(angle)


@kernel
def _four_normals(seed, rows, groups, FAST: tl.constexpr):
    """For each row and group of four columns, one strip apart."""
    row = rows[:, None] + tl.zeros_like(groups)[None, :]
    group = tl.zeros_like(rows)[:, None] + groups[None, :]
    zero = tl.zeros_like(row)
    a, b, c, d = tl.philox(seed, group, row, zero, zero, ROUNDS)
    first, second = _two_normals(a, b, FAST)
    third, fourth = _two_normals(c, d, FAST)
    return first, second, third, fourth


@kernel
def _variance(narrow, pairs, rows, columns, n, row_ok, column_ok, P: tl.constexpr):
    """``Σ_p t_ip v_pj`` of a tile."""
    total = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for p in tl.static_range(P):
        t = tl.load(narrow + rows * P + p, row_ok, 0.0)
        v = tl.load(pairs + p * n + columns, column_ok, 0.0)
        total += t[:, None] * v[None, :]
    return total


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
    y,
    narrow,
    pairs,
    seed_at,
    b,
    n,
    tiny,
    P: tl.constexpr,
    ROWS: tl.constexpr,
    FAST: tl.constexpr,
    REPLACE: tl.constexpr,
):
    """``y += √(t VVᵀ) ∘ ε`` for four strips of columns; or ``y = ε``."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, STRIP)
    normals = _four_normals(tl.load(seed_at), rows, lane + tl.program_id(1) * STRIP, FAST)
    row_ok = rows < b
    for strip in tl.static_range(4):
        columns = lane + (tl.program_id(1) * 4 + strip) * STRIP
        column_ok = columns < n
        at = y + rows[:, None].to(tl.int64) * n + columns[None, :]
        ok = row_ok[:, None] & column_ok[None, :]
        if REPLACE:
            tl.store(at, normals[strip], ok)
        else:
            std = tl.sqrt(tl.maximum(_variance(narrow, pairs, rows, columns, n, row_ok, column_ok, P), tiny))
            noisy = tl.load(at, ok, 0.0).to(tl.float32) + std * normals[strip]
            tl.store(at, noisy, ok)


@kernel
def _variance_gradient_kernel(
    gradient, narrow, pairs, seed_at, of_narrow, of_pairs, b, n, tiny, blocks, blocks_per_split,
    P: tl.constexpr, ROWS: tl.constexpr, FAST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``h = g ∘ ε / std``; sums ``h VV`` over columns in registers, and leaves ``hᵀ t`` of its rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane, p = tl.arange(0, STRIP), tl.arange(0, PADDED)
    row_ok, p_ok = rows < b, p < P
    seed = tl.load(seed_at)
    t = tl.load(narrow + rows[:, None] * P + p[None, :], row_ok[:, None] & p_ok[None, :], 0.0)
    total = tl.zeros((ROWS, PADDED), tl.float32)
    start = tl.program_id(1) * blocks_per_split
    for block in range(start, min(start + blocks_per_split, blocks)):
        normals = _four_normals(seed, rows, lane + block * STRIP, FAST)
        for strip in tl.static_range(4):
            columns = lane + (block * 4 + strip) * STRIP
            column_ok = columns < n
            ok = row_ok[:, None] & column_ok[None, :]
            at = gradient + rows[:, None].to(tl.int64) * n + columns[None, :]
            variance = _variance(narrow, pairs, rows, columns, n, row_ok, column_ok, P)
            scaled = tl.load(at, ok, 0.0).to(tl.float32) * normals[strip] * tl.rsqrt(tl.maximum(variance, tiny))
            scaled = tl.where(variance >= tiny, scaled, 0.0)
            v = tl.load(pairs + p[None, :] * n + columns[:, None], p_ok[None, :] & column_ok[:, None], 0.0)
            total += tl.dot(scaled, v, input_precision=PRECISION)
            share = tl.dot(tl.trans(scaled), t, input_precision=PRECISION)
            place = (tl.program_id(0) * n + columns[:, None]) * P + p[None, :]
            tl.store(of_pairs + place, share, column_ok[:, None] & p_ok[None, :])
    place = (tl.program_id(1) * b + rows[:, None]) * P + p[None, :]
    tl.store(of_narrow + place, total, row_ok[:, None] & p_ok[None, :])


@kernel
def _input_gradient_kernel(
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
            slope = tile * _variance(of_narrow, pairs, rows, columns, m, row_ok, column_ok, P)
            tl.store(of_x + at, tl.load(of_x + at, ok, 0.0).to(tl.float32) + slope, ok)
    place = (tl.program_id(1) * m + columns[:, None]) * P + p[None, :]
    tl.store(of_pairs + place, total, column_ok[:, None] & p_ok[None, :])


PROGRAMS = 512
"""About how many a launch should have: a few for each processor of the largest GPUs."""


def _settings(x: Tensor) -> dict[str, object]:
    """Fast sines, and matrix units where the precision of the inputs (or torch's own setting) allows them."""
    exact = x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
    return {"PRECISION": "ieee" if exact else "tf32"}


def _splits(blocks: int, pieces: int) -> tuple[int, int]:
    """Into how many parts to cut a loop over ``pieces``, given ``blocks`` programs, and how many pieces each has."""
    each = triton.cdiv(pieces, max(1, min(pieces, PROGRAMS // max(1, blocks))))
    return triton.cdiv(pieces, each), each


def _fast(x: Tensor) -> bool:
    return x.is_cuda and torch.version.hip is None


def add_noise(y: Tensor, x: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor, seed: Tensor) -> Tensor:
    """Add the noise to ``y`` in place; the narrow columns ``x² UU`` come back. The pairs are rows, of float32."""
    (b, m), n, count = x.shape, y.shape[1], fan_in_pairs.shape[0]
    rows, block = 32, 128
    splits, pieces = _splits(triton.cdiv(b, rows), triton.cdiv(m, block))
    narrow = x.new_empty(splits, b, count, dtype=torch.float32)
    _narrow_kernel[(triton.cdiv(b, rows), splits)](
        x, fan_in_pairs, narrow, b, m, pieces * block, P=count, ROWS=rows, BLOCK=block, **_settings(x)
    )
    narrow = narrow.sum(0) if splits > 1 else narrow[0]
    _noise_kernel[(triton.cdiv(b, 16), triton.cdiv(n, 4 * STRIP.value))](
        y, narrow, fan_out_pairs, seed, b, n, torch.finfo(torch.float32).tiny,
        P=count, ROWS=16, FAST=_fast(x), REPLACE=False, num_warps=8,
    )  # fmt: skip
    return narrow


def normals(seed: Tensor, b: int, n: int) -> Tensor:
    """The noise that `add_noise` takes from this seed."""
    out = torch.empty(b, n, dtype=torch.float32, device=seed.device)
    _noise_kernel[(triton.cdiv(b, 16), triton.cdiv(n, 4 * STRIP.value))](
        out, out, out, seed, b, n, 0.0, P=1, ROWS=16, FAST=_fast(out), REPLACE=True, num_warps=8
    )
    return out


def noise_gradients(
    gradient: Tensor, x: Tensor, narrow: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor, seed: Tensor,
    input_gradient: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients in the pairs, as rows; the noise's part of the input's gradient is added in place, if wanted."""
    (b, m), n, count = x.shape, gradient.shape[1], fan_in_pairs.shape[0]
    rows = 32
    row_blocks = triton.cdiv(b, rows)
    blocks = triton.cdiv(n, 4 * STRIP.value)
    splits, each = _splits(row_blocks, blocks)
    of_narrow = x.new_empty(splits, b, count, dtype=torch.float32)
    of_fan_out = x.new_empty(row_blocks, n, count, dtype=torch.float32)
    _variance_gradient_kernel[(row_blocks, splits)](
        gradient, narrow, fan_out_pairs, seed, of_narrow, of_fan_out, b, n, torch.finfo(torch.float32).tiny,
        blocks, each, P=count, ROWS=rows, FAST=_fast(x), num_warps=8, **_settings(x),
    )  # fmt: skip
    of_narrow = of_narrow.sum(0) if splits > 1 else of_narrow[0]
    block = 64
    splits, pieces = _splits(triton.cdiv(m, block), row_blocks)
    of_fan_in = x.new_empty(splits, m, count, dtype=torch.float32)
    of_x = x if input_gradient is None else input_gradient
    _input_gradient_kernel[(triton.cdiv(m, block), splits)](
        x, of_narrow, fan_in_pairs, of_x, of_fan_in, b, m, pieces * rows,
        P=count, ROWS=rows, BLOCK=block, WITH_X=input_gradient is not None, **_settings(x),
    )  # fmt: skip
    return of_fan_in.sum(0).mul_(0.5).mT.contiguous(), of_fan_out.sum(0).mul_(0.5).mT.contiguous()
