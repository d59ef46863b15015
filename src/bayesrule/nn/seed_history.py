"""Seeds of past forward passes, found again when activation checkpointing recomputes a part of one."""

from __future__ import annotations

from collections import OrderedDict

import torch

from bayesrule.random import outside_transforms

LENGTH = 1 << 14
"""Generator states remembered: far more than lie between a forward pass and its backward pass."""


class SeedHistory:
    """From the global generator's state to the seed that was in force, the most recent ones.

    Checkpointing restores that state before it recomputes a region, and what happens inside repeats itself.
    """

    def __init__(self) -> None:
        self._seeds: OrderedDict[int, int] = OrderedDict()

    def record(self, seed: int) -> None:
        """This seed is in force at the generator's present state."""
        state = _state()
        self._seeds[state] = seed
        self._seeds.move_to_end(state)
        if len(self._seeds) > LENGTH:
            self._seeds.popitem(last=False)

    def recall(self) -> int | None:
        """The seed that was in force at the generator's present state, if there was one."""
        return self._seeds.get(_state())


def _state() -> int:
    with outside_transforms():
        return hash(torch.get_rng_state().numpy().tobytes())
