"""What a target may be: its shape beside the outputs, its dtype and its values, checked in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch


def readable_values(tensor: Tensor) -> Tensor | None:
    """The tensor whose values can be looked at for free, or None.

    On an accelerator a look would make every step wait for the device, and while compiling there are no values yet.
    Under `torch.func.vmap` the whole unbatched tensor is looked at.
    """
    if torch.compiler.is_compiling() or tensor.device.type != "cpu":
        return None
    return torch.func.debug_unwrap(tensor, recurse=True)


class Support(ABC):
    """The set targets live in. Shapes and dtypes are always checked, values only on the CPU and outside compilation."""

    @abstractmethod
    def event_shape(self, size: int) -> tuple[int, ...]:
        """Shape of one example's target, where the outputs speak of ``size`` numbers or classes."""

    @abstractmethod
    def convert(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """The targets in the dtype the density needs; ``dtype`` is that of the outputs."""

    @abstractmethod
    def contains(self, targets: Tensor, size: int) -> Tensor:
        """For every entry, whether it is a possible value."""

    @abstractmethod
    def describe(self, size: int) -> str:
        """The possible values, in words."""

    def check_outputs(self, shape: torch.Size) -> None:  # noqa: B027, most have nothing to refuse
        """Refuse outputs that are too few to speak of any target."""

    @final
    def prepare(self, targets: Tensor, leading: tuple[int, ...], size: int, dtype: torch.dtype) -> Tensor:
        """Targets of shape (the last few of ``leading``, event), converted and checked."""
        targets = self.convert(_aligned(targets, leading, self.event_shape(size)), dtype)
        values = readable_values(targets)
        if values is None or (inside := self.contains(values, size)).all():
            return targets
        raise InvalidArgument(
            f"targets must be {self.describe(size)}",
            got=f"{int((~inside).sum())} other values, the first of them {values[~inside][0].item()}",
            remedy="Clean or re-encode the targets, or choose the likelihood that fits them.",
        )


def _aligned(targets: Tensor, leading: tuple[int, ...], event: tuple[int, ...]) -> Tensor:
    shape, expected = tuple(targets.shape), (*leading, *event)
    # One number per example is stored as (examples,) as often as (examples, 1). A batch of one example fits both this
    # reading and the next, and this one keeps its example dimension.
    if event == (1,) and len(shape) <= 1 and _ends_with(leading, shape):
        return targets.unsqueeze(-1)
    if len(shape) >= len(event) and _ends_with(expected, shape):
        return targets
    raise ShapeMismatch(
        "targets do not fit the outputs",
        got=f"targets of shape {shape} where the outputs ask for {expected}, or that less leading sample dimensions",
        remedy="The last dimension of the outputs is the event, those before it are samples and examples, and examples "
        "are never broadcast: reshape the targets, often by .unsqueeze(-1) or .squeeze(-1).",
    )


def _ends_with(shape: tuple[int, ...], ending: tuple[int, ...]) -> bool:
    return len(ending) <= len(shape) and tuple(shape[len(shape) - len(ending) :]) == ending


@dataclass(frozen=True)
class Vectors(Support):
    """As many numbers as the outputs speak of, each of which is ``inside`` a set of the reals."""

    description: str
    inside: Callable[[Tensor], Tensor]

    def event_shape(self, size: int) -> tuple[int, ...]:
        """``(size,)``."""
        return (size,)

    def convert(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """To the dtype of the outputs."""
        return targets.to(dtype)

    def contains(self, targets: Tensor, size: int) -> Tensor:
        """Entry by entry."""
        return self.inside(targets)

    def describe(self, size: int) -> str:
        """As given."""
        return self.description


@dataclass(frozen=True)
class ClassIndices(Support):
    """One index out of as many classes as there are outputs."""

    def event_shape(self, size: int) -> tuple[int, ...]:
        """``()``: an index has no dimension of its own."""
        return ()

    def check_outputs(self, shape: torch.Size) -> None:
        """Refuse a single class, whose probability is always 1."""
        if shape[-1] < 2:
            raise ShapeMismatch(
                "classes need two or more outputs",
                got=f"outputs of shape {tuple(shape)}: of a single class the probability is always 1",
                remedy="Use br.Bernoulli() for two classes by one logit.",
            )

    def convert(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        """To int64, from int32 or int64 only: a float here is a probability or a measurement, not a class."""
        if targets.dtype not in (torch.int64, torch.int32):
            raise InvalidArgument(
                "class indices must be int64 or int32",
                got=targets.dtype,
                remedy="Use targets.long() for indices stored as floats, targets.argmax(-1) for one-hot rows.",
            )
        return targets.long()

    def contains(self, targets: Tensor, size: int) -> Tensor:
        """``0 ≤ y < size``."""
        return (targets >= 0) & (targets < size)

    def describe(self, size: int) -> str:
        """The range of indices."""
        return f"class indices from 0 to {size - 1}"


REALS = Vectors("finite numbers", torch.isfinite)
BITS = Vectors("0 or 1", lambda y: (y == 0) | (y == 1))
COUNTS = Vectors("whole numbers from 0", lambda y: (y >= 0) & y.isfinite() & (y == y.floor()))
CLASSES = ClassIndices()
