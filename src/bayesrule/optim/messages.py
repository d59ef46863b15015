"""What the passes of one or more blocks said, gathered until the step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesrule.optim.rule import Message

WIDE = (torch.float32, torch.float64)
"""Types in which a sum of sizes does not overflow as long as the gradients make any sense."""


@dataclass(frozen=True)
class Residuals:
    """``Σ (y − f)²`` over some examples, for the posterior of a Gaussian's noise."""

    squares: Tensor
    examples: int
    entries: int


@dataclass(frozen=True)
class Messages:
    """Everything a step takes from the data: what data-parallel workers average, and nothing else.

    Attributes:
        groups: By group; a group without a gradient is left out.
        plain: Gradients of parameters without a posterior.
        residuals: Of all blocks, where the likelihood has a posterior of its own.
    """

    groups: dict[str, Message]
    plain: dict[str, Tensor]
    residuals: Residuals | None = None

    def tensors(self) -> list[Tensor]:
        """All gradients and curvatures."""
        told = [tensor for message in self.groups.values()
                for tensor in (message.gradient, *(message.curvature or {}).values())]  # fmt: skip
        return told + list(self.plain.values())


class Exchange(ABC):
    """The one place through which messages reach the states: data-parallel training averages them here."""

    @abstractmethod
    def messages(self, messages: Messages) -> Messages:
        """Those of all processes."""

    @abstractmethod
    def any(self, flag: bool) -> bool:
        """Whether it holds in any process."""


class Alone(Exchange):
    """One process: nothing to exchange."""

    def messages(self, messages: Messages) -> Messages:
        """The same."""
        return messages

    def any(self, flag: bool) -> bool:
        """The same."""
        return flag


@dataclass
class Gathered:
    """What passes said so far: means of curvatures over examples, residuals, and how many blocks had a gradient.

    Layers that were tapped are known by the names of their first parameters.
    """

    blocks: int = 0
    tapped: set[str] = field(default_factory=set)
    curvatures: dict[str, tuple[dict[str, Tensor], int]] = field(default_factory=dict)
    residuals: Residuals | None = None

    def add_curvature(self, name: str, curvature: Mapping[str, Tensor], examples: int) -> None:
        """A mean over so many examples."""
        means, count = self.curvatures.get(name, ({}, 0))
        share = examples / (count + examples)
        joined = {key: torch.lerp(means[key], new, share) if count else new for key, new in curvature.items()}
        self.curvatures[name] = joined, count + examples

    def add_residuals(self, found: Residuals) -> None:
        """Some more examples."""
        before = self.residuals
        squares = found.squares if before is None else before.squares + found.squares
        examples = found.examples + (before.examples if before is not None else 0)
        self.residuals = Residuals(squares, examples, found.entries)

    def merge(self, block: Gathered) -> None:
        """Another block."""
        self.blocks += 1
        self.tapped |= block.tapped
        for name, (means, count) in block.curvatures.items():
            self.add_curvature(name, means, count)
        if block.residuals is not None:
            self.add_residuals(block.residuals)

    def copied(self) -> None:
        """Curvatures that are its own, where they were others' to write over."""
        for name, (means, count) in self.curvatures.items():
            self.curvatures[name] = {key: mean.clone() for key, mean in means.items()}, count

    def means(self) -> dict[str, dict[str, Tensor]]:
        """Of all groups."""
        return {name: means for name, (means, _) in self.curvatures.items()}

    def curvature(self, name: str) -> dict[str, Tensor] | None:
        """The mean over all examples."""
        return self.curvatures[name][0] if name in self.curvatures else None


def finite_check(tensors: list[Tensor]) -> Callable[[], bool]:
    """Starts to find out whether every entry is finite, and returns how to learn it: work may be queued in between.

    What is not finite makes a sum of sizes that is not; one number is looked at.
    """
    if all(tensor.device.type == "cpu" for tensor in tensors):
        sums = [tensor.sum(dtype=None if tensor.dtype in WIDE else torch.float32) for tensor in _wholes(tensors)]
        return lambda: all(math.isfinite(each.item()) for each in sums)
    total = sum_of_sizes(tensors)
    return Landing(total).start(total)


def _wholes(tensors: list[Tensor]) -> list[Tensor]:
    """The same entries in fewer tensors: views that cover what they are views of are replaced by that."""
    views: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        views.setdefault(id(tensor if tensor._base is None else tensor._base), []).append(tensor)
    found: list[Tensor] = []
    for each in views.values():
        base = each[0]._base
        whole = base is not None and len(each) > 1 and sum(view.numel() for view in each) == base.numel()
        found += [base] if whole and base is not None else each
    return found


def sum_of_sizes(tensors: list[Tensor]) -> Tensor:
    """A number that is not finite if any entry is not."""
    one_kind = len({(tensor.device, tensor.dtype) for tensor in tensors}) == 1 and tensors[0].dtype in WIDE
    if one_kind and tensors[0].is_cuda:
        sums = list(torch._foreach_norm(tensors, 1))  # one launch
    elif one_kind:
        sums = [tensor.sum() for tensor in tensors]
    else:
        sums = [tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
        sums = [each.to(sums[0].device, torch.float64) for each in sums]
    return torch.stack(sums).sum()


class Landing:
    """Where a number from a device is awaited, again and again."""

    def __init__(self, total: Tensor) -> None:
        self.room = torch.empty((), dtype=total.dtype, pin_memory=total.is_cuda)
        self.event = torch.cuda.Event() if total.is_cuda else None

    def start(self, total: Tensor) -> Callable[[], bool]:
        """Starts to bring it here, and returns how to learn whether it is finite."""
        self.room.copy_(total, non_blocking=True)
        if self.event is not None:
            self.event.record(torch.cuda.current_stream(total.device))
        return self._finite

    def _finite(self) -> bool:
        if self.event is not None:
            self.event.synchronize()
        return math.isfinite(self.room.item())
