"""Sets of units that can only be cut together: those of a layer's output, and all that a sum adds to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Axis = Literal["channel", "feature"]


class Spaces:
    """Sets of units by number; sets that were joined have the same `find`."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self._parents: list[int] = []

    def new(self, size: int) -> int:
        """One more set."""
        self.sizes.append(size)
        self._parents.append(len(self._parents))
        return len(self._parents) - 1

    def find(self, space: int) -> int:
        """The set that stands for it."""
        while self._parents[space] != space:
            space = self._parents[space]
        return space

    def join(self, one: int, other: int) -> None:
        """From now on unit k of one is unit k of the other."""
        self._parents[self.find(other)] = self.find(one)


@dataclass(frozen=True)
class Value:
    """A tensor in the forward pass, seen as units.

    Attributes:
        space: Which units.
        axis: ``"channel"``, dimension 1 of (batch, channels, …), or ``"feature"``, the last dimension.
        block: Consecutive entries of that dimension that belong to one unit: more than one after a flattening.
            None where no example has told yet.
        rank: The tensor's number of dimensions, if known.
        constant: What the unit is everywhere, for every input; NaN where it varies.
    """

    space: int
    axis: Axis
    block: int | None
    rank: int | None
    constant: Float[Tensor, " units"]

    @property
    def units_last(self) -> bool:
        """Whether the units are (or must be taken to be) in the last dimension."""
        return self.axis == "feature" or self.rank == 2

    @property
    def one_each(self) -> bool:
        """Whether every unit is one channel of (batch, channels, …), or one feature of (batch, features)."""
        return self.block == 1 and (self.axis == "channel" or self.rank in (2, None))


def ranked(value: Value, rank: int) -> Value:
    """The value with so many dimensions; of two, the channels are the features."""
    return replace(value, rank=rank, axis="feature" if rank == 2 else value.axis)


def varying(size: int) -> Float[Tensor, " units"]:
    """No unit is constant."""
    return torch.full((size,), torch.nan, dtype=torch.float64)


def mapped(function: Callable[..., Tensor], *constants: Float[Tensor, " units"]) -> Float[Tensor, " units"]:
    """A function of constants is one; of what varies it is not known, whatever it makes of a NaN."""
    unknown = torch.stack([constant.isnan() for constant in constants]).any(0)
    result = function(*(torch.where(unknown, 0.0, constant) for constant in constants))
    return torch.where(unknown, torch.nan, result)
