"""Which rule trains which parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bayesrule.errors import InvalidArgument
from bayesrule.text_table import aligned


@dataclass(frozen=True)
class PlannedParameter:
    """One row of the table: ``rule`` is the optimizer's own, ``"Adam"`` or ``"none"``."""

    name: str
    shape: tuple[int, ...]
    rule: str
    group: str
    note: str


@dataclass(frozen=True)
class Plan:
    """Every parameter of the network, and of the likelihood: what trains it, and why not the optimizer's own rule."""

    rows: tuple[PlannedParameter, ...]

    def __iter__(self) -> Iterator[PlannedParameter]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> PlannedParameter:
        for row in self.rows:
            if row.name == name:
                return row
        raise InvalidArgument(f"There is no parameter {name!r}", got=[row.name for row in self.rows])

    def __str__(self) -> str:
        cells = [(row.name, "×".join(map(str, row.shape)), row.rule, row.group, row.note) for row in self.rows]
        return aligned(("parameter", "shape", "rule", "group", "note"), *cells)
