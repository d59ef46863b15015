"""Which rule trains which parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from bayesrule.curvature import Found
from bayesrule.errors import InvalidArgument
from bayesrule.optim.param_groups import PLAIN_PREFIX
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


def planned(
    model: nn.Module, found: Found, groups: Mapping[str, str], trained: Mapping[str, nn.Parameter], rule: str
) -> Plan:
    """The table of a network whose parameters with a posterior are in these groups."""
    notes = {part.name: f"one posterior for {len(layer.modules)} layers"
             for layer in found.layers if len(layer.modules) > 1 for part in layer.parts}  # fmt: skip
    rows = []
    for name, parameter in model.named_parameters():
        if name in groups:
            row = (rule, groups[name], notes.get(name, ""))
        else:
            row = ("none", "", "frozen") if name in found.frozen else ("Adam", "", found.others[name])
        rows.append(PlannedParameter(name, tuple(parameter.shape), *row))
    own = [(name, p) for name, p in trained.items() if name.startswith(PLAIN_PREFIX)]
    rows += [PlannedParameter(name, tuple(p.shape), "Adam", "", "of the likelihood") for name, p in own]
    return Plan(tuple(rows))
