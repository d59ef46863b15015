"""A Triton kernel that adds multiples of tensors to others; imported only where Triton is installed."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.triton_jit import kernel

BLOCK, CAST_BLOCK = 2048, 4096
TOGETHER = 3
"""Tensors of one launch: a weight's mean and the logarithms of its two factors."""


@kernel
def _add(start, term, out, size, factor, block, STARTS: tl.constexpr, BLOCK: tl.constexpr):
    """In fours: as many as a thread writes at once; left to itself it would read more at once than it writes."""
    four = tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    index = block.to(tl.int64) * BLOCK + four
    ok = index < size
    total = tl.load(term + index, ok, 0.0) * factor
    if STARTS:
        total += tl.load(start + index, ok, 0.0).to(tl.float32)
    tl.store(out + index, total, ok)


@kernel
def _add_kernel(
    start, term, out, size, number, second_start, second_term, second_out, second_size, second_number,
    third_start, third_term, third_out, third_size, third_number, factor_at,
    STARTS: tl.constexpr, SECOND_STARTS: tl.constexpr, THIRD_STARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tensor, and in further programs two others."""
    block, factor = tl.program_id(0), tl.load(factor_at)
    blocks, second_blocks = tl.cdiv(size, BLOCK), tl.cdiv(second_size, BLOCK)
    if block < blocks:
        _add(start, term, out, size, number * factor, block, STARTS, BLOCK)
    elif block < blocks + second_blocks:
        _add(
            second_start, second_term, second_out, second_size, second_number * factor, block - blocks,
            SECOND_STARTS, BLOCK,
        )  # fmt: skip
    else:
        _add(
            third_start, third_term, third_out, third_size, third_number * factor, block - blocks - second_blocks,
            THIRD_STARTS, BLOCK,
        )  # fmt: skip


@kernel
def _cast_kernel(tensor, out, squares, size, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = index < size
    entries = tl.load(tensor + index, ok, 0.0)
    tl.store(out + index, entries, ok)
    tl.store(squares + tl.program_id(0), tl.sum(entries * entries, 0))


def cast_with_squares(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A contiguous float32 tensor in another precision, and some numbers whose sum is that of its squares."""
    programs = triton.cdiv(tensor.numel(), CAST_BLOCK)
    out, squares = torch.empty_like(tensor, dtype=dtype), tensor.new_empty(programs)
    _cast_kernel[(programs,)](tensor, out, squares, tensor.numel(), BLOCK=CAST_BLOCK)
    return out, squares


def add_multiples(
    starts: Sequence[Tensor | None], terms: Sequence[tuple[Tensor, float]], factor: Tensor
) -> tuple[Tensor, ...]:
    """``start + factor · number · tensor`` of up to `TOGETHER` tensors, of contiguous float32 terms.

    It is written over a start of that precision.
    """
    outs = tuple(
        start if start is not None and start.dtype == tensor.dtype else torch.empty_like(tensor)
        for start, (tensor, _) in zip(starts, terms, strict=True)
    )
    arguments: list[object] = []
    for start, (tensor, number), out in zip(starts, terms, outs, strict=True):
        arguments += [tensor if start is None else start, tensor, out, tensor.numel(), number]
    missing = TOGETHER - len(terms)
    arguments += missing * [terms[0][0], terms[0][0], outs[0], 0, 0.0]
    programs = sum(triton.cdiv(tensor.numel(), BLOCK) for tensor, _ in terms)
    flags = [start is not None for start in starts] + missing * [False]
    _add_kernel[(programs,)](
        *arguments, factor, STARTS=flags[0], SECOND_STARTS=flags[1], THIRD_STARTS=flags[2], BLOCK=BLOCK
    )
    return outs
