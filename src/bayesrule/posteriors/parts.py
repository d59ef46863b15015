"""Which parameters an event holds, and where."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.linalg import MatrixView


@dataclass(frozen=True)
class Part:
    """One named parameter inside an event.

    In a matrix event a part is a run of rows: a weight through its `MatrixView`, or a bias as one further row. In a
    vector event it is a run of entries: those of the matrix, in row-major order, where the layout is a `MatrixView`,
    otherwise those of the parameter itself.
    """

    name: str
    layout: MatrixView | tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's own shape."""
        return self.layout.shape if isinstance(self.layout, MatrixView) else self.layout

    def length(self, event_dim: int) -> int:
        """How many rows (or entries, of a vector) it takes."""
        if event_dim == 1:
            return math.prod(self.shape)
        return self.layout.fan_in if isinstance(self.layout, MatrixView) else 1

    def restore(self, piece: Tensor, event_dim: int) -> Tensor:
        """Its piece of an event, in the parameter's own layout."""
        batch = piece.shape[: piece.ndim - event_dim]
        if isinstance(self.layout, MatrixView):
            matrix = piece if event_dim == 2 else piece.reshape(*batch, self.layout.fan_in, self.layout.fan_out)
            return self.layout.weight(matrix)
        return piece.reshape(*batch, *self.shape)


def locate(name: str, parts: tuple[Part, ...], event_dim: int) -> tuple[Part, int]:
    """A part by name, and where it starts."""
    start = 0
    for part in parts:
        if part.name == name:
            return part, start
        start += part.length(event_dim)
    raise InvalidArgument(f"This posterior holds no parameter {name!r}", got=[part.name for part in parts])


def split_event(event: Tensor, parts: tuple[Part, ...], event_dim: int) -> dict[str, Tensor]:
    """Cut an event into its parts, each in its parameter's layout."""
    lengths = [part.length(event_dim) for part in parts]
    if event.ndim < event_dim or sum(lengths) != event.shape[-event_dim]:
        raise ShapeMismatch(
            f"Parts {[part.name for part in parts]} take {sum(lengths)} of dimension {-event_dim}",
            got=tuple(event.shape),
        )
    # The gradient of a split is a copy of everything.
    pieces = event.split(lengths, dim=-event_dim) if len(parts) > 1 else (event,)
    return {part.name: part.restore(piece, event_dim) for part, piece in zip(parts, pieces, strict=True)}
