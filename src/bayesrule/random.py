"""Where noise comes from: a source is asked for a shape and a law, and can be replayed by its seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

Law = Literal["normal", "uniform", "sign"]


@runtime_checkable
class NoiseSource(Protocol):
    """Anything that hands out noise of a given shape and law."""

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Noise of ``shape`` from ``law``, with the dtype and device of ``like``."""


def draw(shape: tuple[int, ...], law: Law, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fresh noise: standard normal, uniform on [0, 1), or random signs ±1.

    Half precision gets the noise of float32, rounded: a seed then means the same noise with and without autocast.
    """
    dtype = like.dtype if like.dtype == torch.float64 else torch.float32
    if law == "normal":
        noise = torch.randn(shape, generator=generator, dtype=dtype, device=like.device)
    elif law == "uniform":
        noise = torch.rand(shape, generator=generator, dtype=dtype, device=like.device)
    else:
        noise = torch.randint(0, 2, shape, generator=generator, dtype=dtype, device=like.device) * 2 - 1
    return noise.to(like.dtype)


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


def in_graph() -> bool:
    """Whether the step is being compiled, or captured in a CUDA graph.

    It must then look at no values and seed no generators: the graph draws from torch's own, which it advances.
    """
    if torch.compiler.is_compiling():
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def keyed_generator(device: torch.device, *key: int | str) -> torch.Generator:
    """A generator whose stream depends on the key alone: the same key, the same noise."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big") >> 1)
