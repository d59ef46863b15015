"""Multiples of tensors added to others, which may be overwritten: by one kernel for several on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.kernels.operators import has_kernels


def add_multiples(
    sums: Sequence[Tensor | None], terms: Sequence[tuple[Tensor, float]], factor: Tensor, *, in_place: bool = True
) -> list[Tensor]:
    """``sum + factor · number · tensor`` for each (tensor, number) of the terms; a sum that is None counts as zero.

    Args:
        sums: In the terms' precision or a lower one.
        terms: What to add to each.
        factor: One number, in a tensor.
        in_place: Whether sums may be overwritten.
    """
    on_cpu = factor.device.type == "cpu"
    by_kernel = in_place and not on_cpu
    if by_kernel and all(_for_kernel(start, tensor) for start, (tensor, _) in zip(sums, terms, strict=True)):
        return _by_kernels(sums, terms, factor)
    # A CPU reads the number once, at no cost; a GPU would wait for it.
    number = factor.item() if on_cpu else factor
    return [_added(start, tensor, by, number, in_place) for start, (tensor, by) in zip(sums, terms, strict=True)]


def cast_with_squares(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """A tensor in another precision, with numbers whose sum is that of its squares where they cost nothing."""
    if dtype == tensor.dtype or not _for_kernel(None, tensor):
        return tensor.to(dtype), None
    from bayesrule.kernels import triton_sums

    return triton_sums.cast_with_squares(tensor, dtype)


def _by_kernels(sums: Sequence[Tensor | None], terms: Sequence[tuple[Tensor, float]], factor: Tensor) -> list[Tensor]:
    """All of a layer's at once."""
    from bayesrule.kernels import triton_sums

    found: list[Tensor] = []
    for first in range(0, len(terms), triton_sums.TOGETHER):
        some = slice(first, first + triton_sums.TOGETHER)
        found += triton_sums.add_multiples(sums[some], terms[some], factor)
    return found


def _for_kernel(start: Tensor | None, tensor: Tensor) -> bool:
    whole = tensor.is_contiguous() and (start is None or start.is_contiguous())
    return has_kernels(tensor) and tensor.dtype == torch.float32 and whole


def _added(start: Tensor | None, tensor: Tensor, number: float, factor: float | Tensor, in_place: bool) -> Tensor:
    if start is None:
        return tensor * (factor * number)
    if isinstance(factor, Tensor):
        return torch.addcmul(start, tensor, factor, value=number)
    if in_place and start.dtype == tensor.dtype:
        return start.add_(tensor, alpha=factor * number)
    return torch.add(start, tensor, alpha=factor * number)
