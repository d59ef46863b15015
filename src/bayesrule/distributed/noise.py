"""Noise of processes that train together: keyed by process, or by example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesrule.distributed.counted import counted
from bayesrule.distributed.rows import Rows
from bayesrule.distributed.world import World
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.random import FromGenerator, KeyedNoise, Law, NoiseSource, draw, fresh_seed, in_graph, keyed_generator

NoiseKey = Literal["rank", "example"]


@dataclass
class ByRank(KeyedNoise):
    """Every process has noise of its own, so that the mean over processes averages over as many draws.

    Its key comes from a generator that is in the same state in all processes, and the rank.
    """

    world: World
    generator: torch.Generator | None = None
    whole = False

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Noise of this process."""
        if in_graph():  # which seeds no generators: the device's own must differ between processes
            return draw(shape, law, like)
        return self.seeded(like.device, fresh_seed(self.generator))(shape, law, like)

    def by_example(self) -> NoiseSource:
        """The same: examples of other processes get other noise."""
        return self

    def seeded(self, device: torch.device, *key: int | str) -> NoiseSource:
        """Of the key and the rank."""
        return FromGenerator(keyed_generator(device, *key, "rank", self.world.rank))


@dataclass
class ByExample(KeyedNoise):
    """All processes share the draws of weights, and noise of an example depends on its place in the whole batch.

    How many processes there are, and into how many parts a batch is cut, then makes no difference. Keys come from a
    generator that is in the same state in all processes and advances alike, whatever the size of their batches.
    """

    rows: Rows | None = None
    generator: torch.Generator | None = None
    whole = True

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Noise that all processes share."""
        return counted(shape, law, like, key=self._key())

    def by_example(self) -> NoiseSource:
        """Noise of these examples, of which every one has as many rows of the tensor."""
        return self._by_example

    def seeded(self, device: torch.device, *key: int | str) -> NoiseSource:
        """Of the key alone."""
        return FromGenerator(keyed_generator(device, *key))

    def _by_example(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        count = shape[0] if self.rows is None else self.rows.count
        if count == 0 or shape[0] % count:
            raise InvalidArgument(
                f"Noise keyed by example needs tensors with the same number of rows for each of {count} examples",
                got=tuple(shape), remedy='Pass exactly the rows that own(…) gave, or use noise="rank".',
            )  # fmt: skip
        entries = torch.Size(shape).numel() // count
        first = 0 if self.rows is None else self.rows.first
        return counted(shape, law, like, key=self._key(), first=first * entries)

    def _key(self) -> int:
        if in_graph():
            raise Unsupported(
                "Noise keyed by example gets a new key in every pass, which a recorded graph cannot",
                remedy='Train without compilation and capture, or use noise="rank".',
            )
        return fresh_seed(self.generator)


def keyed_noise(key: NoiseKey, world: World, generator: torch.Generator | None = None) -> ByRank | ByExample | None:
    """The source of a process; None where the model's own serves."""
    if key == "example":
        return ByExample(generator=generator)
    if key == "rank":
        return ByRank(world, generator) if world.size > 1 else None
    raise InvalidArgument('noise is keyed by "rank" or by "example"', got=repr(key))
