"""Events of several groups as one: small ones cost more to call for one by one than to compute."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

MOST = 2**17
"""Entries in all: what a processor still has in its cache when the next operation comes to them."""


def together(events: Sequence[Tensor], kinds: Sequence[Hashable]) -> list[slice]:
    """Runs of neighbours of one kind with at most so many entries in all; each event is in one."""
    runs: list[slice] = []
    start = total = 0
    for place, event in enumerate(events):
        if place > start and (kinds[place] != kinds[start] or total + event.numel() > MOST):
            runs.append(slice(start, place))
            start, total = place, 0
        total += event.numel()
    return [*runs, slice(start, len(events))]


def joined(events: Sequence[Tensor]) -> Float[Tensor, "entries 1"]:
    """All entries, column by column: the memory of events that follow one another there, else a copy."""
    base, start = events[0]._base, events[0].storage_offset()
    place = start
    for event in events:
        if event._base is not base or event.storage_offset() != place or not _columns(event):
            base = None
            break
        place += event.numel()
    if base is None:
        return torch.cat([each.mT.reshape(-1, 1) for each in events])
    return base if base.shape == (place - start, 1) else base.as_strided((place - start, 1), (1, 1), start)


def _columns(event: Tensor) -> bool:
    """Whether it lies in memory column by column."""
    return event.stride() == (1, event.shape[0]) or event.mT.is_contiguous()


def apart(whole: Float[Tensor, "entries 1"], shapes: Iterable[tuple[int, ...]]) -> list[Tensor]:
    """The way back, to events of these shapes: views, so that `joined` finds the whole again."""
    pieces, place = [], whole.storage_offset()
    for rows, columns in shapes:
        pieces.append(whole.as_strided((rows, columns), (1, rows), place))
        place += rows * columns
    return pieces
