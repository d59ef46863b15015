"""What the passes of one or more blocks said, gathered until the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bayesrule.optim.rule import Message


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
    """Sums over passes: curvatures weighted by examples, residuals, and how many blocks had a gradient."""

    blocks: int = 0
    curvatures: dict[str, tuple[dict[str, Tensor], int]] = field(default_factory=dict)
    residuals: Residuals | None = None

    def add_curvature(self, name: str, curvature: Mapping[str, Tensor], examples: int) -> None:
        """A mean over so many examples."""
        sums, count = self.curvatures.get(name, ({}, 0))
        added = {
            key: value * examples + sums[key] if key in sums else value * examples for key, value in curvature.items()
        }
        self.curvatures[name] = added, count + examples

    def add_residuals(self, found: Residuals) -> None:
        """Some more examples."""
        before = self.residuals
        squares = found.squares if before is None else before.squares + found.squares
        examples = found.examples + (before.examples if before is not None else 0)
        self.residuals = Residuals(squares, examples, found.entries)

    def merge(self, block: Gathered) -> None:
        """Another block."""
        self.blocks += 1
        for name, (sums, count) in block.curvatures.items():
            self.add_curvature(name, {key: value / count for key, value in sums.items()}, count)
        if block.residuals is not None:
            self.add_residuals(block.residuals)

    def curvature(self, name: str) -> dict[str, Tensor] | None:
        """The mean over all examples."""
        if name not in self.curvatures:
            return None
        sums, count = self.curvatures[name]
        return {key: value / count for key, value in sums.items()}


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether every entry is finite, by one look at the device: what is not makes a sum that is not."""
    sums = [tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors]
    return bool(torch.stack([each.to(sums[0].device, torch.float64) for each in sums]).isfinite().all())
