"""Where noise comes from: a source is asked for a shape and a law, and can be replayed by its seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

Law = Literal["normal", "uniform", "sign"]


class NoiseSource(Protocol):
    """Anything that hands out noise of a given shape and law."""

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Noise of ``shape`` from ``law``, with the dtype and device of ``like``."""


def draw(shape: tuple[int, ...], law: Law, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fresh noise: standard normal, uniform on [0, 1), or random signs ±1."""
    noise = torch.empty(shape, dtype=like.dtype, device=like.device)
    if law == "normal":
        return noise.normal_(generator=generator)
    if law == "uniform":
        return noise.uniform_(generator=generator)
    return noise.bernoulli_(0.5, generator=generator) * 2 - 1


@dataclass(frozen=True)
class FromGenerator:
    """Noise from a ``torch.Generator`` (or the global one)."""

    generator: torch.Generator | None = None

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Fresh noise."""
        return draw(shape, law, like, self.generator)


@dataclass
class Replay:
    """Given tensors, handed out in order: for tests and for recomputation with the same noise."""

    noises: list[Tensor] = field(default_factory=list)

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """The next tensor."""
        noise = self.noises.pop(0)
        return noise.to(like).expand(shape)
