"""Parameters that share a posterior, as one event."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesrule.curvature import Layer
from bayesrule.linalg import MatrixView
from bayesrule.optim.joining import apart
from bayesrule.posteriors import Part
from bayesrule.posteriors.parts import split_event


@dataclass(frozen=True)
class Group:
    """One layer as a fan-in × fan-out matrix, or several as one vector of their entries, row by row."""

    layers: tuple[Layer, ...]
    event_dim: int

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Its parameters, in the order of the event."""
        return tuple(part for layer in self.layers for part in layer.parts)

    @cached_property
    def name(self) -> str:
        """That of its first parameter."""
        return self.parts[0].name

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Fan-in and fan-out of its layers."""
        return tuple(layer.shape for layer in self.layers)

    @cached_property
    def event_shape(self) -> tuple[int, ...]:
        """That of a draw, and of its noise."""
        return self.shapes[0] if self.event_dim == 2 else (sum(m * n for m, n in self.shapes),)

    @cached_property
    def size(self) -> int:
        """Entries of the event."""
        return math.prod(self.event_shape)

    def event(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Tensors in the parameters' own layouts as one event; their leading dimensions are a batch."""
        if self._dense and len(self.parts) == 2 and tensors[self.name].ndim == 2:
            return torch.cat((tensors[self.name], tensors[self.parts[1].name].unsqueeze(-1)), dim=-1).mT
        rows = [_rows(part, tensors[part.name]) for part in self.parts]
        if self.event_dim == 1:
            rows = [each.flatten(-2) for each in rows]
        if len(rows) == 1:
            return rows[0]
        if self.event_dim == 1:
            return torch.cat(rows, dim=-1)
        return torch.cat([each.mT for each in rows], dim=-1).mT  # in columns, as weights lie

    def split(self, event: Tensor) -> dict[str, Tensor]:
        """The way back."""
        if not self._dense or event.ndim > 2:
            return split_event(event, self.parts, self.event_dim)
        if len(self.parts) == 1:
            return {self.name: event.mT}
        (rows, columns), (down, across), start = event.shape, event.stride(), event.storage_offset()
        weight = event.as_strided((columns, rows - 1), (across, down), start)  # two calls, where slices take three
        return {
            self.name: weight,
            self.parts[1].name: event.as_strided((columns,), (across,), start + (rows - 1) * down),
        }

    @cached_property
    def _dense(self) -> bool:
        """Whether it is one Linear layer: by far the most frequent group, whose pieces are plain views."""
        layout = self.parts[0].layout
        return self.event_dim == 2 and isinstance(layout, MatrixView) and len(layout.shape) == 2


@dataclass(frozen=True)
class Drawn:
    """What a draw has added to a group's mean: a factor times ``R ε``."""

    deviation: Tensor
    factor: float


KEPT = 2**20
"""Entries that may stay in memory between steps; above, memory counts for more than the time to find some."""


class Events:
    """Events of several groups in memory that later ones are written over; matrices lie one after another there."""

    def __init__(self, groups: Iterable[Group], like: Mapping[str, Tensor]) -> None:
        """For tensors of the kinds of these."""
        self.groups = tuple(groups)
        self._events: list[Tensor] | None = None
        self._parts: dict[str, Tensor] = {}
        kinds = {(like[part.name].dtype, like[part.name].device) for group in self.groups for part in group.parts}
        sizes = [group.size for group in self.groups]
        if len(sizes) > 1 and len(kinds) == 1 and sum(sizes) <= KEPT:
            whole = like[self.groups[0].name].new_empty((sum(sizes), 1))
            self._events = apart(whole, [group.event_shape for group in self.groups])
            for group, event in zip(self.groups, self._events, strict=True):
                self._parts |= group.split(event)

    def of(self, groups: Sequence[Group], tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Of tensors in the parameters' own layouts; of some of the groups, each in new memory."""
        if self._events is None or len(groups) != len(self.groups):
            return [group.event(tensors) for group in groups]
        torch._foreach_copy_(list(self._parts.values()), [tensors[name] for name in self._parts])
        return self._events


def grouped(layers: tuple[Layer, ...], joint: bool) -> tuple[Group, ...]:
    """All layers as one vector, or each as a matrix."""
    return (Group(layers, 1),) if joint else tuple(Group((layer,), 2) for layer in layers)


def _rows(part: Part, tensor: Tensor) -> Tensor:
    if tensor.ndim <= 2 == len(part.shape):
        return tensor.mT
    return part.layout.matrix(tensor) if isinstance(part.layout, MatrixView) else tensor.unsqueeze(-2)
