"""What a conversion did, parameter by parameter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Estimator
from bayesrule.posteriors import Family
from bayesrule.priors import Prior
from bayesrule.text_table import aligned


@dataclass(frozen=True)
class ConvertedParameter:
    """One row of the table."""

    name: str
    shape: tuple[int, ...]
    posterior: str
    prior: str
    estimator: str
    numbers: int
    """Trainable numbers it is now kept as."""
    note: str


@dataclass(frozen=True)
class Recipe:
    """What each converted layer was given, by its name: enough to convert another copy of the network alike."""

    posterior: dict[str, Family]
    prior: dict[str, Prior]
    estimator: dict[str, Estimator]
    bias: str


@dataclass(frozen=True)
class Conversion:
    """Every parameter of the network: what became Bayesian, what did not, and why."""

    rows: tuple[ConvertedParameter, ...]
    recipe: Recipe

    def __iter__(self) -> Iterator[ConvertedParameter]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> ConvertedParameter:
        for row in self.rows:
            if row.name == name:
                return row
        raise InvalidArgument(
            f"The network has no parameter {name!r}", got=f"parameters {[row.name for row in self.rows]}",
            remedy="A tied parameter has one row, under its first name.",
        )  # fmt: skip

    @property
    def numbers(self) -> int:
        """Trainable numbers of the whole model."""
        return sum(row.numbers for row in self.rows)

    def __str__(self) -> str:
        header = ("parameter", "shape", "posterior", "prior", "estimator", "numbers", "note")
        cells = [
            (
                row.name,
                "×".join(map(str, row.shape)),
                row.posterior,
                row.prior,
                row.estimator,
                f"{row.numbers:,}",
                row.note,
            )
            for row in self.rows
        ]
        return aligned(header, *cells)


def describe(option: Any) -> str:
    """A recipe as it was written: its name and what differs from the defaults."""
    changed = []
    for field in fields(option):
        value = getattr(option, field.name)
        if isinstance(value, Tensor):
            changed.append(f"{field.name}=tensor{tuple(value.shape)}")
        elif value != field.default or field.name in ("rank", "std", "group"):
            changed.append(f"{field.name}={value!r}")
    return f"{type(option).__name__}({', '.join(changed)})"
