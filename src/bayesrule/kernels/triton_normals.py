"""Standard normals for Triton kernels, from a seed in device memory; imported only where Triton is installed.

Philox gives four normals a call, one for each of four neighbouring strips of rows.
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

STRIP = tl.constexpr(16)
"""Rows of a strip; the noise of a seed depends on it."""
ROUNDS = tl.constexpr(7)
"""Of Philox-4x32: seven pass every test of randomness that ten pass."""
KEYS = tl.constexpr((0x9E3779B9, 0xBB67AE85))
FACTORS = tl.constexpr((0xD2511F53, 0xCD9E8D57))
LEAST_SQUARE = tl.constexpr(1.1920929e-07)
"""Of a radius: that of the largest uniform number; a fast logarithm may fall below it, even below zero."""


@kernel
def philox(seed, column, row):
    """Four random words for each column and row; a product's two halves come of one instruction, unlike `tl.philox`."""
    c0, c1 = column.to(tl.uint32), row.to(tl.uint32)
    c2, c3 = tl.zeros_like(c0), tl.zeros_like(c0)
    key0, key1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        first, second = c0.to(tl.uint64) * FACTORS[0], c2.to(tl.uint64) * FACTORS[1]
        c0, c2 = (second >> 32).to(tl.uint32) ^ c1 ^ key0, (first >> 32).to(tl.uint32) ^ c3 ^ key1
        c1, c3 = second.to(tl.uint32), first.to(tl.uint32)
        key0, key1 = key0 + KEYS[0], key1 + KEYS[1]
    return c0, c1, c2, c3


@kernel
def _one_to_two(bits):
    """A uniform number in [1, 2), of 23 bits."""
    return ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)


@kernel
def two_parts(bits_radius, bits_angle, FAST: tl.constexpr):
    """Box–Muller: the square of the radius, the uniform behind it in (0, 1), and cosine and sine of the angle."""
    uniform = _one_to_two(bits_radius) - 0.99999994
    angle = _one_to_two(bits_angle) * 6.2831855 - 9.424778
    if FAST:
        square = -1.3862944 * libdevice.fast_log2f(uniform)
        return tl.maximum(square, LEAST_SQUARE), libdevice.fast_cosf(angle), libdevice.fast_sinf(angle)
    else:  # noqa: RET505, Triton compiles one of the two
        return tl.maximum(-2.0 * tl.log(uniform), LEAST_SQUARE), tl.cos(angle), tl.sin(angle)


@kernel
def four_parts(seed, block, columns, tile, FAST: tl.constexpr):
    """For the four strips of a block of rows, and each column: squares of radii, and cosines and sines.

    Each normal is the root of a square times a cosine or sine; apart, they spare a root where variances follow. They
    lie in registers as the tile does, which was loaded: otherwise every strip would have to be rearranged.
    """
    group = block * STRIP + tl.arange(0, STRIP)
    column = columns[None, :] + tl.zeros_like(group)[:, None]
    if FAST:
        column += tl.inline_asm_elementwise("mov.b32 $0, 0;", "=r,r", [tile.to(tl.float32)], tl.int32, True, 1)
    a, b, c, d = philox(seed, column, group[:, None] + tl.zeros_like(column))
    square, cosine, sine = two_parts(a, b, FAST)
    more_square, more_cosine, more_sine = two_parts(c, d, FAST)
    return (square, square, more_square, more_square), (cosine, sine, more_cosine, more_sine)


@kernel
def four_normals(seed, block, columns, FAST: tl.constexpr):
    """For the four strips of a block of rows, and each column."""
    squares, sides = four_parts(seed, block, columns, tl.zeros((STRIP, columns.shape[0]), tl.float32), FAST)
    radius, more_radius = tl.sqrt(squares[0]), tl.sqrt(squares[2])
    return radius * sides[0], radius * sides[1], more_radius * sides[2], more_radius * sides[3]


@kernel
def rows_of_strip(block, strip):
    """Which rows a strip of a block has."""
    return (block * 4 + strip) * STRIP + tl.arange(0, STRIP)


@kernel
def places(matrix, rows, columns, n, row_ok, column_ok):
    """The addresses of a tile of a matrix with n columns, and which of them there are."""
    return matrix + rows[:, None].to(tl.int64) * n + columns[None, :], row_ok[:, None] & column_ok[None, :]


@kernel
def four_tiles(matrix, block, columns, n, b, column_ok):
    """Those of the four strips, all on their way before the first is needed."""
    rows = rows_of_strip(block, 0)
    at, ok = places(matrix, rows, columns, n, rows < b, column_ok)
    first = tl.load(at, ok, 0.0)
    at, ok = places(matrix, rows + STRIP, columns, n, rows + STRIP < b, column_ok)
    second = tl.load(at, ok, 0.0)
    at, ok = places(matrix, rows + 2 * STRIP, columns, n, rows + 2 * STRIP < b, column_ok)
    third = tl.load(at, ok, 0.0)
    at, ok = places(matrix, rows + 3 * STRIP, columns, n, rows + 3 * STRIP < b, column_ok)
    return first, second, third, tl.load(at, ok, 0.0)


def has_fast_sines(x: Tensor) -> bool:
    """Whether the GPU has sines and cosines in hardware."""
    return x.is_cuda and torch.version.hip is None


def row_blocks_of(rows: int) -> int:
    """Blocks of four strips."""
    return triton.cdiv(rows, 4 * STRIP.value)
