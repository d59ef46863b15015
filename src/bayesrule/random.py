"""Where noise comes from: a source is asked for a shape and a law, and can be replayed by its seed."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms

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
    options: dict[str, Any] = {
        "dtype": like.dtype if like.dtype == torch.float64 else torch.float32,
        "device": like.device,
    }
    if generator is not None:  # the operators that take one know no symbolic sizes, which compiled code has
        options["generator"] = generator
    if law == "normal":
        noise = torch.randn(shape, **options)
    elif law == "uniform":
        noise = torch.rand(shape, **options)
    else:
        noise = torch.randint(0, 2, shape, **options) * 2 - 1
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


def fresh_seed(generator: torch.Generator | None = None) -> int:
    """A seed from a CPU generator, by default the global one: a single one, also where `vmap` makes numbers many."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        return int(torch.randint(2**62, (), generator=generator, device="cpu").item())
    with outside_transforms():
        return fresh_seed(generator)


class KeyedNoise(ABC):
    """Noise of many processes, whose generators are all in the same state: it also depends on who asks for what."""

    whole: bool
    """Whether weights must be drawn whole: a part that depends on the batch would be another draw for each process."""

    @abstractmethod
    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Noise that all examples share, such as that of a weight."""

    @abstractmethod
    def by_example(self) -> NoiseSource:
        """The source of noise whose first dimension runs over examples."""

    @abstractmethod
    def seeded(self, device: torch.device, *key: int | str) -> NoiseSource:
        """The source of a draw that several uses share, by its key instead of by the generator."""


def by_example(noise: NoiseSource) -> NoiseSource:
    """The source to ask for noise whose first dimension runs over examples."""
    return noise.by_example() if isinstance(noise, KeyedNoise) else noise


def by_parts(noise: NoiseSource) -> bool:
    """Whether only those parts of a weight may be drawn that a batch uses."""
    return not (isinstance(noise, KeyedNoise) and noise.whole)


def replayable(noise: NoiseSource) -> bool:
    """Whether the noise is a function of the global generator's state, which activation checkpointing brings back."""
    return isinstance(noise, KeyedNoise) or (isinstance(noise, FromGenerator) and noise.generator is None)


def seeded(noise: NoiseSource, device: torch.device, *key: int | str) -> NoiseSource:
    """A source for one draw of this key."""
    if isinstance(noise, KeyedNoise):
        return noise.seeded(device, *key)
    generator = keyed_generator(device, *key)
    return replace(noise, generator=generator) if isinstance(noise, FromGenerator) else FromGenerator(generator)
