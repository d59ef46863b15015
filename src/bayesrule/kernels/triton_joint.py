"""Triton kernels that draw many matrices and vectors at once, each by its address; imported only where Triton is.

A vector is a matrix of one row and rank one. The noise of a seed is made again for the gradient.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.joint import Piece
from bayesrule.kernels.triton_jit import kernel
from bayesrule.kernels.triton_noise import STRIP, four_parts, has_fast_sines, row_blocks_of, rows_of_strip

COLUMNS = 32
"""Of a tile, which has the rows of four strips."""
TOGETHER = 8
"""Gradients of one launch."""
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
def _piece(tiles, pieces):
    """Of a program: its piece and which it is, its block of rows and its tile of them, and the piece's sizes."""
    at = tiles + 3 * tl.program_id(0)
    index, block, tile = tl.load(at), tl.load(at + 1).to(tl.int32), tl.load(at + 2)
    piece = pieces + FIELDS * index
    return piece, index, block, tile, tl.load(piece + 3), tl.load(piece + 4), tl.load(piece + 5)


@kernel
def _places(rows, columns, fan_in, fan_out):
    """Where entries are, and which there are."""
    at = rows[:, None].to(tl.int64) * fan_in + columns[None, :]
    return at, (rows < fan_out)[:, None] & (columns < fan_in)[None, :]


@kernel
def _draw_kernel(tiles, pieces, seed_at, out, found, K: tl.constexpr, COLUMNS: tl.constexpr, FAST: tl.constexpr):
    """``mean + S ∘ ε`` of a tile, and its sums for the KL."""
    piece, _, block, tile, fan_in, fan_out, rank = _piece(tiles, pieces)
    columns = tile.to(tl.int32) * COLUMNS + tl.arange(0, COLUMNS)
    mean, fan_in_logs, fan_out_logs = _floats(tl.load(piece)), _floats(tl.load(piece + 1)), _floats(tl.load(piece + 2))
    draw, seed = out + tl.load(piece + 6), tl.load(seed_at) + tl.load(piece + 7)
    at, ok = _places(rows_of_strip(block, 0), columns, fan_in, fan_out)
    entries = tl.load(mean + at, ok, 0.0)
    squares, sides = four_parts(seed, block, columns, entries, FAST)
    of_squares, of_means, of_sum, logs = entries * 0.0, entries * 0.0, entries * 0.0, entries * 0.0
    for strip in tl.static_range(4):
        rows = rows_of_strip(block, strip)
        at, ok = _places(rows, columns, fan_in, fan_out)
        entries = tl.load(mean + at, ok, 0.0)
        std = _std(fan_in_logs, fan_out_logs, rows, columns, rank, rows < fan_out, columns < fan_in, K)
        tl.store(draw + at, entries + std * (tl.sqrt(squares[strip]) * sides[strip]), ok)
        of_squares += std * std
        of_means += entries * entries
        of_sum += entries
        logs += tl.log(tl.where(ok, std, 1.0))
    at_found, is_first = found + BEFORE + VALUES * tl.program_id(0), tl.program_id(0) == 0
    tl.store(at_found, tl.sum(of_squares))
    tl.store(at_found + 1, tl.sum(of_means))
    tl.store(at_found + 2, tl.sum(of_sum))
    tl.store(at_found + 3, tl.sum(logs))
    tl.store(found, 0.0, is_first)
    tl.store(found + 1, 1.0, is_first)


@kernel
def _strip(
    piece, gradient, of_mean, rows, columns, fan_in, fan_out, rank, used, square, side, of_kl, centre, precision,
    K: tl.constexpr, KL: tl.constexpr,
):  # fmt: skip
    """The gradient in a strip's standard deviations; that in its means is written."""
    at, ok = _places(rows, columns, fan_in, fan_out)
    slope = tl.load(gradient + at, ok & used, 0.0)
    of_std = slope * (tl.sqrt(square) * side)
    if KL:
        mean, fan_in_logs = _floats(tl.load(piece)), _floats(tl.load(piece + 1))
        fan_out_logs = _floats(tl.load(piece + 2))
        std = _std(fan_in_logs, fan_out_logs, rows, columns, rank, rows < fan_out, columns < fan_in, K)
        of_std += tl.where(ok, of_kl * (precision * std - 1.0 / tl.where(ok, std, 1.0)), 0.0)
        slope += of_kl * precision * (tl.load(mean + at, ok, 0.0) - centre)
    tl.store(of_mean + at, slope, ok)
    return of_std


@kernel
def _address(index, first, a0, a1, a2, a3, a4, a5, a6, a7):
    """One of these numbers: a tensor of the gradients' addresses would have to be copied to the GPU in every step."""
    some = tl.where(index == first, a0, tl.where(index == first + 1, a1, tl.where(index == first + 2, a2, a3)))
    more = tl.where(index == first + 4, a4, tl.where(index == first + 5, a5, tl.where(index == first + 6, a6, a7)))
    return tl.where(index < first + 4, some, more)


@partial(kernel, general=("first", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7"))
def _gradient_kernel(
    tiles, pieces, seed_at, out, of_kl_at, priors, fan_in_parts, fan_out_parts, first, a0, a1, a2, a3, a4, a5, a6, a7,
    K: tl.constexpr, COLUMNS: tl.constexpr, KL: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The gradient in the mean, from that in the draw, and a tile's parts of the sums for both factors."""
    piece, index, block, tile, fan_in, fan_out, rank = _piece(tiles, pieces)
    columns = tile.to(tl.int32) * COLUMNS + tl.arange(0, COLUMNS)
    address = _address(index, first, a0, a1, a2, a3, a4, a5, a6, a7).to(tl.int64)
    gradient, used = _floats(address), address != 0
    of_mean, seed = out + tl.load(piece + 6), tl.load(seed_at) + tl.load(piece + 7)
    of_kl, centre, precision = 0.0, 0.0, 0.0
    if KL:
        of_kl, centre, precision = tl.load(of_kl_at), tl.load(priors + 2 * index), tl.load(priors + 2 * index + 1)
    r0, r1 = rows_of_strip(block, 0), rows_of_strip(block, 1)
    r2, r3 = rows_of_strip(block, 2), rows_of_strip(block, 3)
    at, ok = _places(r0, columns, fan_in, fan_out)
    squares, sides = four_parts(seed, block, columns, tl.load(gradient + at, ok & used, 0.0), FAST)
    s0 = _strip(piece, gradient, of_mean, r0, columns, fan_in, fan_out, rank, used, squares[0], sides[0], of_kl, centre,
                precision, K, KL)  # fmt: skip
    s1 = _strip(piece, gradient, of_mean, r1, columns, fan_in, fan_out, rank, used, squares[1], sides[1], of_kl, centre,
                precision, K, KL)  # fmt: skip
    s2 = _strip(piece, gradient, of_mean, r2, columns, fan_in, fan_out, rank, used, squares[2], sides[2], of_kl, centre,
                precision, K, KL)  # fmt: skip
    s3 = _strip(piece, gradient, of_mean, r3, columns, fan_in, fan_out, rank, used, squares[3], sides[3], of_kl, centre,
                precision, K, KL)  # fmt: skip
    of_rows = fan_out_parts + tl.load(piece + 11) + tile * fan_out * rank
    of_columns = fan_in_parts + tl.load(piece + 10) + block * fan_in * rank
    fan_in_logs, fan_out_logs = _floats(tl.load(piece + 1)), _floats(tl.load(piece + 2))
    for a in tl.static_range(K):
        u = _factor(fan_in_logs, columns, rank, a, columns < fan_in)[None, :]
        tl.store(of_rows + r0 * rank + a, tl.sum(s0 * u, 1), (r0 < fan_out) & (a < rank))
        tl.store(of_rows + r1 * rank + a, tl.sum(s1 * u, 1), (r1 < fan_out) & (a < rank))
        tl.store(of_rows + r2 * rank + a, tl.sum(s2 * u, 1), (r2 < fan_out) & (a < rank))
        tl.store(of_rows + r3 * rank + a, tl.sum(s3 * u, 1), (r3 < fan_out) & (a < rank))
        total = s0 * _factor(fan_out_logs, r0, rank, a, r0 < fan_out)[:, None]
        total += s1 * _factor(fan_out_logs, r1, rank, a, r1 < fan_out)[:, None]
        total += s2 * _factor(fan_out_logs, r2, rank, a, r2 < fan_out)[:, None]
        total += s3 * _factor(fan_out_logs, r3, rank, a, r3 < fan_out)[:, None]
        tl.store(of_columns + columns * rank + a, tl.sum(total, 0), (columns < fan_in) & (a < rank))


@kernel
def _factor_kernel(chunks, pieces, fan_in_parts, fan_out_parts, out, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
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
        self.zero = torch.zeros(1, dtype=torch.float32, device=device)  # log V of a vector
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
        self.parts, rank = parts, max(1, *(piece.rank for piece in pieces))
        self.pieces, self.tiles, self.chunks = (
            torch.tensor(each, dtype=torch.int64, device=device) for each in (fields, tiles, chunks)
        )
        ends = [len(tiles) if end >= len(pieces) else self.of_tiles.index(end)
                for end in range(TOGETHER, len(pieces) + TOGETHER, TOGETHER)]  # fmt: skip
        self.launches = list(zip([0, *ends], ends, strict=False))
        self.with_gaps: list[Tensor] = []
        for piece, start, end in zip(pieces, self.draws, self.draws[1:], strict=False):
            sizes_of_both = piece.mean.shape, (end - start - piece.mean.numel(),)
            self.with_gaps += [torch.empty(size, dtype=torch.float32, device="meta") for size in sizes_of_both]
        self.settings = {"K": rank, "COLUMNS": COLUMNS, "FAST": has_fast_sines(self.zero), "num_warps": 8}

    @property
    def read(self) -> tuple[Tensor, ...]:
        """What the kernels read of it."""
        return self.pieces, self.tiles, self.chunks, self.zero

    def draw(self, seed: Tensor) -> tuple[Tensor, Tensor]:
        """All draws one after another, with gaps, and what `weights_of` weighs for a KL."""
        out = self.zero.new_empty(self.draws[-1])
        found = self.zero.new_empty(BEFORE.value + VALUES.value * len(self.tiles))
        _draw_kernel[(len(self.tiles),)](self.tiles, self.pieces, seed, out, found, **self.settings)
        return out, found

    def gradients(
        self, given: Sequence[Tensor | None], seed: Tensor, of_kl: Tensor | None, priors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The gradients in the means, one after another, with gaps, and those in the logarithms.

        Args:
            given: Those in the draws.
            seed: The draws'.
            of_kl: The KL's gradient.
            priors: Of each piece, the prior's centre and precision.
        """
        parts = [self.zero.new_empty(max(count, 1)) for count in self.parts]
        out, logs = (self.zero.new_empty(count) for count in (self.draws[-1], self.logs[-1]))
        addresses = [0 if gradient is None else gradient.data_ptr() for gradient in given]
        addresses += [0] * (-len(addresses) % TOGETHER)
        nothing = self.zero
        for first, (start, end) in zip(range(0, len(given), TOGETHER), self.launches, strict=True):
            _gradient_kernel[(end - start,)](
                self.tiles[start:end], self.pieces, seed, out, nothing if of_kl is None else of_kl,
                nothing if priors is None else priors, *parts, first, *addresses[first : first + TOGETHER],
                KL=of_kl is not None, **self.settings,
            )  # fmt: skip
        _factor_kernel[(len(self.chunks),)](self.chunks, self.pieces, *parts, logs, COLUMNS=COLUMNS, BLOCK=FACTOR_BLOCK)
        return out, logs

    def weights_of(self, priors: Sequence[tuple[float, float]], constant: float) -> Tensor:
        """What the sums of tiles count in a KL: ``½τ(ΣS² + Σ mean² − 2c Σ mean + n c²) − Σ log S``, and a constant."""
        weights = [1.0, constant]
        for index in self.of_tiles:
            centre, precision = priors[index]
            weights += [0.5 * precision, 0.5 * precision, -precision * centre, -1.0]
        return torch.tensor(weights, dtype=torch.float32, device=self.zero.device)
