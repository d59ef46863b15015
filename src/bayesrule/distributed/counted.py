"""Noise as a function of a key and a counter: entry by entry, without a generator."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.random import Law

GOLDEN, FIRST, SECOND = (
    value - 2**64 if value >= 2**63 else value for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
"""The constants of SplitMix64, as signed numbers."""


def counted(shape: tuple[int, ...], law: Law, like: Tensor, *, key: int, first: int = 0) -> Tensor:
    """The entries numbered ``first, first + 1, …`` of the endless noise of a key, in this shape.

    The bits are those of SplitMix64 at ``key + n·γ``   [Steele, Lea & Flood 2014]; a normal is ``Φ⁻¹`` of them. It is
    the same on every device, and in every precision but for rounding.
    """
    count = torch.Size(shape).numel()
    bits = _mixed(key + GOLDEN * torch.arange(first, first + count, device=like.device)).reshape(shape)
    if law == "sign":
        return torch.where(bits < 0, -1.0, 1.0).to(like.dtype)
    if law == "uniform":
        places = 53 if like.dtype == torch.float64 else 24  # so that no number rounds to 1
        return (_shifted(bits, 64 - places).to(torch.float64) * 2.0**-places).to(like.dtype)
    inside = (_shifted(bits, 12).to(torch.float64) + 0.5) * 2.0**-52  # neither 0 nor 1
    return torch.special.ndtri(inside).to(like.dtype)


def _mixed(state: Tensor) -> Tensor:
    """The finalizer; products wrap around."""
    state = (state ^ _shifted(state, 30)) * FIRST
    state = (state ^ _shifted(state, 27)) * SECOND
    return state ^ _shifted(state, 31)


def _shifted(bits: Tensor, places: int) -> Tensor:
    """To the right, zeros following."""
    return (bits >> places) & (2 ** (64 - places) - 1)
