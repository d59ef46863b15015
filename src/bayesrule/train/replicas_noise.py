"""The order of rows and the noise of many replicas: each has a stream of its own, keyed by its seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.random import keyed_generator

STEPS_TOGETHER = 64
"""About how many steps' noise is drawn at once: a call for each replica would cost more than its numbers."""
STEPS_TOGETHER_ON_DEVICE = 256
"""Likewise where a call costs more, and numbers less."""


@dataclass(frozen=True)
class Batch:
    """What one step of all replicas gets.

    Attributes:
        x: Inputs, with the constant one.
        y: Targets.
        weight_noise: Standard normal, an entry for each weight.
        target_noise: Standard normal, for targets drawn from the models.
    """

    x: Float[Tensor, "replicas rows features"]
    y: Float[Tensor, "replicas rows targets"]
    weight_noise: Float[Tensor, "replicas entries"]
    target_noise: Float[Tensor, "replicas rows targets"]


@dataclass(frozen=True)
class Stream:
    """Batches of every epoch, the same for a replica whichever others it is trained with.

    Attributes:
        x: Inputs of each replica.
        y: Targets.
        seeds: Of the replicas.
        batch_size: Rows of a step; the last one of an epoch has what is left.
        entries: Weights of one network.
    """

    x: Float[Tensor, "replicas n features"]
    y: Float[Tensor, "replicas n targets"]
    seeds: Sequence[int]
    batch_size: int
    entries: int

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return -(-self.x.shape[1] // self.batch_size)

    @property
    def together(self) -> int:
        """Epochs drawn at once."""
        return max(1, self.steps_together // self.steps)

    @property
    def steps_together(self) -> int:
        """About how many steps' noise is drawn at once."""
        return STEPS_TOGETHER

    def epochs(self, first: int, last: int) -> Iterator[Iterator[Batch]]:
        """Those from ``first`` up to ``last``, which is not among them."""
        for block in range(first // self.together, -(-last // self.together)):
            orders, weights, targets = self._block(block)
            for number in range(self.together):
                if first <= block * self.together + number < last:
                    yield self._batches(orders[:, number], weights[:, number], targets[:, number])

    def _block(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Orders (replicas, epochs, n), and the two noises by epoch."""
        n, like = self.x.shape[1], self.x
        orders, weights, targets = [], [], []
        for seed in self.seeds:
            generator = keyed_generator(torch.device("cpu"), seed, "replica", block)
            orders.append(torch.stack([torch.randperm(n, generator=generator) for _ in range(self.together)]))
            shapes = (self.together, self.steps, self.entries), (self.together, *self.y.shape[1:])
            drawn = [torch.randn(shape, generator=generator, dtype=like.dtype) for shape in shapes]
            weights.append(drawn[0])
            targets.append(drawn[1])
        return (
            torch.stack(orders).to(like.device), torch.stack(weights).to(like.device), torch.stack(targets).to(like)
        )  # fmt: skip

    def _batches(self, order: Tensor, weights: Tensor, targets: Tensor) -> Iterator[Batch]:
        rows = torch.arange(len(order), device=order.device)[:, None]
        x, y = self.x[rows, order], self.y[rows, order]
        size = self.batch_size
        parts = zip(x.split(size, 1), y.split(size, 1), weights.unbind(1), targets.split(size, 1), strict=True)
        return (Batch(*each) for each in parts)


@dataclass(frozen=True)
class DeviceStream(Stream):
    """The same, drawn where the replicas are: a generator there for each of them, and one call for all it needs.

    The numbers are others than on the CPU. Rows are ordered by normal keys.
    """

    @property
    def steps_together(self) -> int:
        """About how many steps' noise is drawn at once."""
        return STEPS_TOGETHER_ON_DEVICE

    def _block(self, block: int) -> tuple[Tensor, Tensor, Tensor]:
        """Orders (replicas, epochs, n), and the two noises by epoch."""
        like, (n, targets) = self.x, self.y.shape[1:]
        shapes = [(n,), (self.steps, self.entries), (n, targets)]
        sizes = [self.together * math.prod(shape) for shape in shapes]
        drawn = like.new_empty((len(self.seeds), sum(sizes)))
        for row, seed in zip(drawn.unbind(0), self.seeds, strict=True):
            row.normal_(generator=keyed_generator(like.device, seed, "replica", block))
        parts = zip(drawn.split(sizes, 1), shapes, strict=True)
        keys, weights, noises = (part.unflatten(1, (self.together, *shape)) for part, shape in parts)
        return keys.argsort(dim=-1, stable=True), weights, noises
