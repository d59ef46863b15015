"""What the passes of one or more blocks said, gathered until the step."""

from __future__ import annotations

import math
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


@dataclass
class Gathered:
    """What passes said so far: means of curvatures over examples, residuals, and how many blocks had a gradient."""

    blocks: int = 0
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
        for name, (means, count) in block.curvatures.items():
            self.add_curvature(name, means, count)
        if block.residuals is not None:
            self.add_residuals(block.residuals)

    def curvature(self, name: str) -> dict[str, Tensor] | None:
        """The mean over all examples."""
        return self.curvatures[name][0] if name in self.curvatures else None


def finite_check(tensors: list[Tensor]) -> Callable[[], bool]:
    """Starts to find out whether every entry is finite, and returns how to learn it: work may be queued in between.

    What is not finite makes a sum of sizes that is not; one number is looked at.
    """
    one_kind = len({(tensor.device, tensor.dtype) for tensor in tensors}) == 1 and tensors[0].dtype in WIDE
    if one_kind and tensors[0].is_cuda:
        sums = list(torch._foreach_norm(tensors, 1))  # one launch
    elif one_kind:
        sums = [tensor.sum() for tensor in tensors]
    else:
        sums = [tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
        sums = [each.to(sums[0].device, torch.float64) for each in sums]
    total = torch.stack(sums).sum()
    if not total.is_cuda:
        return lambda: math.isfinite(total.item())
    landed, event = torch.empty((), dtype=total.dtype, pin_memory=True), torch.cuda.Event()
    landed.copy_(total, non_blocking=True)
    event.record(torch.cuda.current_stream(total.device))

    def finite() -> bool:
        event.synchronize()
        return math.isfinite(landed.item())

    return finite
