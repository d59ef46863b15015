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


@kernel
def _add(start, term, out, size, factor, block, STARTS: tl.constexpr, BLOCK: tl.constexpr):
    index = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = index < size
    total = tl.load(term + index, ok, 0.0) * factor
    if STARTS:
        total += tl.load(start + index, ok, 0.0).to(tl.float32)
    tl.store(out + index, total, ok)


@kernel
def _add_kernel(
    start, term, out, size, number, more_start, more_term, more_out, more_size, more_number, factor_at,
    STARTS: tl.constexpr, MORE_STARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One tensor, and in further programs another."""
    block, blocks, factor = tl.program_id(0), tl.cdiv(size, BLOCK), tl.load(factor_at)
    if block < blocks:
        _add(start, term, out, size, number * factor, block, STARTS, BLOCK)
    else:
        _add(more_start, more_term, more_out, more_size, more_number * factor, block - blocks, MORE_STARTS, BLOCK)


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
    """``start + factor · number · tensor`` of one or two tensors, of contiguous float32 terms.

    It is written over a start of that precision.
    """
    outs = tuple(
        start if start is not None and start.dtype == tensor.dtype else torch.empty_like(tensor)
        for start, (tensor, _) in zip(starts, terms, strict=True)
    )
    arguments: list[object] = []
    for start, (tensor, number), out in zip(starts, terms, outs, strict=True):
        arguments += [tensor if start is None else start, tensor, out, tensor.numel(), number]
    programs = sum(triton.cdiv(tensor.numel(), BLOCK) for tensor, _ in terms)
    flags = [start is not None for start in starts]
    _add_kernel[(programs,)](
        *arguments, *(arguments if len(terms) == 1 else ()), factor, STARTS=flags[0], MORE_STARTS=flags[-1], BLOCK=BLOCK
    )
    return outs
