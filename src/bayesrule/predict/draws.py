"""Draws of a whole model's weights, reproducible one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.posteriors import Posterior
from bayesrule.random import FromGenerator, keyed_generator


def draw_weights(posteriors: dict[str, Posterior], indices: range, seed: int) -> dict[str, Tensor]:
    """Draws number ``indices``, stacked in front, by parameter name; draw i is the same however it is asked for."""
    stacked: dict[str, Tensor] = {}
    for name, posterior in posteriors.items():
        # One at a time, because products of matrices round differently in batches of different sizes.
        drawn = [_draw(posterior, seed, i, name) for i in indices]
        stacked |= posterior.split(torch.stack(drawn) if len(drawn) > 1 else drawn[0][None])  # which copies nothing
    return stacked


def draws_within(memory_limit: int, posteriors: dict[str, Posterior]) -> int:
    """How many draws of the weights fit into so many bytes."""
    size = sum(posterior.mean.numel() * posterior.mean.element_size() for posterior in posteriors.values())
    if size > memory_limit:
        raise InvalidArgument(
            f"One draw of the weights takes {size:,} bytes", got=f"a memory limit of {memory_limit:,}",
            remedy=f"Raise memory_limit to {size:,} or more.",
        )  # fmt: skip
    return memory_limit // max(size, 1)


def _draw(posterior: Posterior, seed: int, index: int, name: str) -> Tensor:
    source = FromGenerator(keyed_generator(posterior.mean.device, seed, index, name))
    return posterior.from_noise(posterior.noise_from(source))
