"""Triton kernels that draw many matrices and vectors at once, each by its address; imported only where Triton is.

A vector is a matrix of one row and rank one. The noise of a seed is made again for the gradient.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.joint import Piece
from bayesrule.kernels.triton_jit import kernel
from bayesrule.kernels.triton_noise import STRIP, four_parts, has_fast_sines, row_blocks_of, rows_of_strip

COLUMNS = 64
"""Of a tile, which has the rows of four strips."""
FACTOR_BLOCK = 256
"""Entries of a factor whose gradient a program adds up."""
ALIGNED = 64
"""Where a draw begins, in numbers: products want their matrices at multiples of 256 bytes."""
FIELDS = tl.constexpr(12)
"""Of a piece: addresses of its mean and of both logarithms; fan-in, fan-out and rank; where its draw begins, and its
place; where gradients in the logarithms begin, and parts of their sums."""
VALUES = tl.constexpr(4)
"""Sums that every tile finds for the KL: of S², of mean², of the mean, and of log S."""
BEFORE = tl.constexpr(2)
"""Numbers before them: a zero, whose gradient is the KL's, and a one."""


@kernel
def _floats(address):
    return address.to(tl.pointer_type(tl.float32))


@kernel
def _factor(logs, index, rank, a, ok):
    """A column of a factor, zero beyond its rank."""
    return tl.exp(tl.load(logs + index * rank + a, ok & (a < rank), -float("inf")))


@kernel
def _std(fan_in_logs, fan_out_logs, rows, columns, rank, row_ok, column_ok, K: tl.constexpr):
    """A tile of ``S = V Uᵀ``."""
    total = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for a in tl.static_range(K):
        v = _factor(fan_out_logs, rows, rank, a, row_ok)
        total += v[:, None] * _factor(fan_in_logs, columns, rank, a, column_ok)[None, :]
    return total


@kernel
def _draw_kernel(
    tiles, pieces, zero, seed_at, out, found, K: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr
):  # fmt: skip
    """``mean + S ∘ ε`` of a tile, and its sums for the KL."""
    program = tl.program_id(0)
    piece = pieces + FIELDS * tl.load(tiles + 3 * program)
    block, columns = tl.load(tiles + 3 * program + 1).to(tl.int32), tl.arange(0, COLUMNS)
    columns += tl.load(tiles + 3 * program + 2).to(tl.int32) * COLUMNS
    mean, fan_in_logs, fan_out_logs = _floats(tl.load(piece)), _floats(tl.load(piece + 1)), _floats(tl.load(piece + 2))
    fan_in, fan_out, rank = tl.load(piece + 3), tl.load(piece + 4), tl.load(piece + 5)
    draw, seed = out + tl.load(piece + 6), tl.load(seed_at) + tl.load(piece + 7)
    column_ok = columns < fan_in
    first = rows_of_strip(block, 0)
    at = first[:, None].to(tl.int64) * fan_in + columns[None, :]
    entries = tl.load(mean + at, (first < fan_out)[:, None] & column_ok[None, :], 0.0)
    squares, sides = four_parts(seed, block, columns, entries, FAST)
    of_squares, of_means, of_sum = 0.0, 0.0, 0.0
    logs = 0.0
    for strip in tl.static_range(4):
        rows = rows_of_strip(block, strip)
        ok = (rows < fan_out)[:, None] & column_ok[None, :]
        at = rows[:, None].to(tl.int64) * fan_in + columns[None, :]
        entries = tl.load(mean + at, ok, 0.0)
        std = _std(fan_in_logs, fan_out_logs, rows, columns, rank, rows < fan_out, column_ok, K)
        tl.store(draw + at, entries + std * (tl.sqrt(squares[strip]) * sides[strip]), ok)
        of_squares += tl.sum(std * std)
        of_means += tl.sum(entries * entries)
        of_sum += tl.sum(entries)
        logs += tl.sum(tl.log(tl.where(ok, std, 1.0)))
    at_found = found + BEFORE + VALUES * program
    tl.store(at_found, of_squares)
    tl.store(at_found + 1, of_means)
    tl.store(at_found + 2, of_sum)
    tl.store(at_found + 3, logs)
    tl.store(found, 0.0, program == 0)
    tl.store(found + 1, 1.0, program == 0)


@kernel
def _gradient_kernel(
    tiles, pieces, zero, seed_at, gradient, of_kl_at, priors, fan_in_parts, fan_out_parts,
    K: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, KL: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The gradient in the mean, written over that in the draw, and a tile's parts of the sums for both factors."""
    program = tl.program_id(0)
    index, block = tl.load(tiles + 3 * program), tl.load(tiles + 3 * program + 1).to(tl.int32)
    tile = tl.load(tiles + 3 * program + 2)
    piece, columns = pieces + FIELDS * index, tile.to(tl.int32) * COLUMNS + tl.arange(0, COLUMNS)
    mean, fan_in_logs, fan_out_logs = _floats(tl.load(piece)), _floats(tl.load(piece + 1)), _floats(tl.load(piece + 2))
    fan_in, fan_out, rank = tl.load(piece + 3), tl.load(piece + 4), tl.load(piece + 5)
    slopes, seed = gradient + tl.load(piece + 6), tl.load(seed_at) + tl.load(piece + 7)
    of_rows = fan_out_parts + tl.load(piece + 11) + tile * fan_out * rank
    of_kl, centre, precision = 0.0, 0.0, 0.0
    if KL:
        of_kl, centre, precision = tl.load(of_kl_at), tl.load(priors + 2 * index), tl.load(priors + 2 * index + 1)
    column_ok = columns < fan_in
    first = rows_of_strip(block, 0)
    at = first[:, None].to(tl.int64) * fan_in + columns[None, :]
    slope = tl.load(slopes + at, (first < fan_out)[:, None] & column_ok[None, :], 0.0)
    squares, sides = four_parts(seed, block, columns, slope, FAST)
    sums = tl.zeros((PADDED, COLUMNS), tl.float32)
    for strip in tl.static_range(4):
        rows = rows_of_strip(block, strip)
        row_ok = rows < fan_out
        ok = row_ok[:, None] & column_ok[None, :]
        at = rows[:, None].to(tl.int64) * fan_in + columns[None, :]
        slope = tl.load(slopes + at, ok, 0.0)
        of_std = slope * (tl.sqrt(squares[strip]) * sides[strip])
        if KL:
            std = _std(fan_in_logs, fan_out_logs, rows, columns, rank, row_ok, column_ok, K)
            of_std += tl.where(ok, of_kl * (precision * std - 1.0 / tl.where(ok, std, 1.0)), 0.0)
            entries = tl.load(mean + at, ok, 0.0)
            tl.store(slopes + at, slope + of_kl * precision * (entries - centre), ok)
        for a in tl.static_range(K):
            u = _factor(fan_in_logs, columns, rank, a, column_ok)
            v = _factor(fan_out_logs, rows, rank, a, row_ok)
            tl.store(of_rows + rows * rank + a, tl.sum(of_std * u[None, :], 1), row_ok & (a < rank))
            sums += tl.where(tl.arange(0, PADDED)[:, None] == a, tl.sum(of_std * v[:, None], 0)[None, :], 0.0)
    a = tl.arange(0, PADDED)[:, None]
    of_columns = fan_in_parts + tl.load(piece + 10) + block * fan_in * rank
    tl.store(of_columns + columns[None, :] * rank + a, sums, (a < rank) & column_ok[None, :])


@kernel
def _factor_kernel(chunks, pieces, zero, fan_in_parts, fan_out_parts, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    """Sums of parts, times the factor: gradients in its logarithms."""
    at = chunks + 3 * tl.program_id(0)
    piece, of_rows = pieces + FIELDS * tl.load(at), tl.load(at + 1)
    index = tl.load(at + 2) * BLOCK + tl.arange(0, BLOCK)
    fan_in, fan_out, rank = tl.load(piece + 3), tl.load(piece + 4), tl.load(piece + 5)
    size = tl.where(of_rows == 1, fan_out, fan_in) * rank
    count = tl.where(of_rows == 1, tl.cdiv(fan_in, COLUMNS), tl.cdiv(fan_out, 4 * STRIP))
    parts = tl.where(of_rows == 1, fan_out_parts.to(tl.int64), fan_in_parts.to(tl.int64))
    parts = _floats(parts) + tl.load(piece + 10 + of_rows)
    ok = index < size
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(count):
        total += tl.load(parts + part * size + index, ok, 0.0)
    logs = _floats(tl.load(piece + 1 + of_rows))
    tl.store(out + tl.load(piece + 8 + of_rows) + index, total * tl.exp(tl.load(logs + index, ok, 0.0)), ok)


class Tables:
    """Where pieces lie and which program does what, in the memory of the GPU; made anew when others are put there.

    Args:
        pieces: The pieces.
        places: A number for each, which with a seed gives its noise.
    """

    def __init__(self, pieces: Sequence[Piece], places: Sequence[int]) -> None:
        device = pieces[0].mean.device
        self.zero = torch.zeros(1, device=device)  # log V of a vector
        fields, tiles, chunks = [], [], []
        self.of_tiles: list[int] = []
        self.draws, self.logs = [0], [0]
        parts = [0, 0]
        for index, (piece, place) in enumerate(zip(pieces, places, strict=True)):
            (fan_in, fan_out, rank), tensors = piece.sizes, [each.data_ptr() for each in piece.stored.parameters]
            if not rank:
                fan_out, rank, tensors = 1, 1, [*tensors, self.zero.data_ptr()]
            blocks, across = row_blocks_of(fan_out), triton.cdiv(fan_in, COLUMNS)
            sizes = fan_in * rank, fan_out * rank
            fields += [*tensors, fan_in, fan_out, rank, self.draws[-1], place, self.logs[-1], self.logs[-1] + sizes[0],
                       *parts]  # fmt: skip
            tiles += [(index, block, tile) for block in range(blocks) for tile in range(across)]
            self.of_tiles += [index] * (blocks * across)
            sides = (0, 1) if piece.rank else (0,)
            chunks += [(index, side, at) for side in sides for at in range(triton.cdiv(sizes[side], FACTOR_BLOCK))]
            self.draws.append(self.draws[-1] + triton.cdiv(fan_in * fan_out, ALIGNED) * ALIGNED)
            self.logs.append(self.logs[-1] + sum(sizes[side] for side in sides))
            parts = [parts[0] + blocks * sizes[0], parts[1] + across * sizes[1]]
        self.programs, self.factor_programs, self.parts = len(tiles), len(chunks), parts
        self.rank = max(1, *(piece.rank for piece in pieces))
        self.pieces, self.tiles, self.chunks = (
            torch.tensor(each, dtype=torch.int64, device=device) for each in (fields, tiles, chunks)
        )
        self.settings = {"K": self.rank, "COLUMNS": COLUMNS, "FAST": has_fast_sines(self.zero), "num_warps": 4}

    def draw(self, seed: Tensor) -> tuple[Tensor, Tensor]:
        """All draws one after another, with gaps, and what `weights_of` weighs for a KL."""
        out = torch.empty(self.draws[-1], device=seed.device)
        found = torch.empty(BEFORE.value + VALUES.value * self.programs, device=seed.device)
        _draw_kernel[(self.programs,)](self.tiles, self.pieces, self.zero, seed, out, found, **self.settings)
        return out, found

    def gradients(self, gradient: Tensor, seed: Tensor, of_kl: Tensor | None, priors: Tensor | None) -> Tensor:
        """The gradients in the logarithms, one after another; those in means are written over those in the draws.

        Args:
            gradient: Those, one after another, with gaps.
            seed: The draws'.
            of_kl: The KL's gradient.
            priors: Of each piece, the prior's centre and precision.
        """
        parts = [gradient.new_empty(max(count, 1)) for count in self.parts]
        out, nothing = gradient.new_empty(self.logs[-1]), self.zero
        _gradient_kernel[(self.programs,)](
            self.tiles, self.pieces, self.zero, seed, gradient, nothing if of_kl is None else of_kl,
            nothing if priors is None else priors, *parts, PADDED=triton.next_power_of_2(self.rank),
            KL=of_kl is not None, **self.settings,
        )  # fmt: skip
        _factor_kernel[(self.factor_programs,)](
            self.chunks, self.pieces, self.zero, *parts, out, COLUMNS=COLUMNS, BLOCK=FACTOR_BLOCK
        )
        return out

    def weights_of(self, priors: Sequence[tuple[float, float]], constant: float) -> Tensor:
        """What the sums of tiles count in a KL: ``½τ(ΣS² + Σ mean² − 2c Σ mean + n c²) − Σ log S``, and a constant."""
        weights = [1.0, constant]
        for index in self.of_tiles:
            centre, precision = priors[index]
            weights += [0.5 * precision, 0.5 * precision, -precision * centre, -1.0]
        return torch.tensor(weights, device=self.zero.device)
