"""How one column becomes features: standardised numbers, or one indicator per category."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bayesrule.data import config as saved
from bayesrule.data.columns import BadTable, Cells, as_numbers, as_text, first_text, first_unusable

MOST_CATEGORIES = 100
FARTHEST = 1e6
"""Standardised numbers are clipped here, far outside any sensible data, so that float32 cannot overflow later."""


@dataclass(frozen=True)
class ColumnUse:
    """The features of one column, and how many of its cells were not as in training.

    Attributes:
        values: One column per feature.
        imputed: Missing cells that were filled in, or that have no feature of their own.
        unseen: Cells of a category that training did not have.
        clipped: Numbers more than a million standard deviations away.
    """

    values: Float[np.ndarray, "rows features"]
    imputed: int = 0
    unseen: int = 0
    clipped: int = 0


@dataclass(frozen=True)
class NumberColumn:
    """``(x − mean) / std`` with the median for what is missing, and a 0/1 flag beside it if training missed any.

    Mean and standard deviation are those of the training column after imputation.
    """

    name: str
    median: float
    mean: float
    std: float
    flag: bool

    @classmethod
    def fit(cls, name: str, numbers: Float[np.ndarray, " rows"]) -> NumberColumn:
        """From a training column with at least one number."""
        missing = np.isnan(numbers)
        median = float(np.median(numbers[~missing]))
        mean, std = moments(np.where(missing, median, numbers))
        return cls(name, median, mean, std, bool(missing.any()))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The column's name, and that of its flag."""
        return (self.name, f"{self.name} (missing)") if self.flag else (self.name,)

    def encode(self, cells: Cells, rows: list[object]) -> ColumnUse:
        """The features of a column; ``rows`` are the labels that an error names."""
        numbers = finite_numbers(self.name, cells, rows)
        missing = np.isnan(numbers)
        with np.errstate(over="ignore"):  # by a tiny standard deviation; clipped below
            scaled = (np.where(missing, self.median, numbers) - self.mean) / self.std
        clipped = int((np.abs(scaled) > FARTHEST).sum())
        features = [np.clip(scaled, -FARTHEST, FARTHEST), missing.astype(np.float64)][: 1 + self.flag]
        return ColumnUse(np.stack(features, axis=1), imputed=int(missing.sum()), clipped=clipped)

    def to_config(self) -> dict[str, object]:
        """What `from_config` reads."""
        return {"kind": "number", **vars(self)}

    @classmethod
    def from_config(cls, config: object) -> NumberColumn:
        """Read back, with every field checked."""
        return cls(
            saved.text(config, "name"),
            saved.number(config, "median"),
            saved.number(config, "mean"),
            saved.number(config, "std", positive=True),
            saved.flag(config, "flag"),
        )


@dataclass(frozen=True)
class TextColumn:
    """One 0/1 feature per category in sorted order, then one for all other categories, then one for missing.

    Attributes:
        name: Of the column.
        categories: That have a feature of their own; none if only being missing tells anything.
        other: Whether the rest share one. Without it an unseen category has zeros everywhere.
        missing: Whether a missing value has one: if training had any.
    """

    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool

    @classmethod
    def fit(cls, name: str, cells: list[str]) -> TextColumn:
        """From a training column: the most frequent categories, the first in order among equally frequent ones."""
        counts = Counter(cells)
        missing = counts.pop("", 0) > 0
        kept = sorted(counts, key=lambda category: (-counts[category], category))[:MOST_CATEGORIES]
        return cls(name, tuple(sorted(kept)), len(counts) > len(kept), missing)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """``column=category``, and ``column (other)`` and ``column (missing)``."""
        shared = [f"{self.name} (other)"] * self.other + [f"{self.name} (missing)"] * self.missing
        return (*(f"{self.name}={category}" for category in self.categories), *shared)

    def encode(self, cells: Cells, rows: list[object]) -> ColumnUse:
        """The features of a column."""
        text = as_text(cells)
        known = {category: place for place, category in enumerate(self.categories)}
        nowhere = len(self.feature_names)
        unseen = len(known) if self.other else nowhere
        gone = nowhere - 1 if self.missing else nowhere
        places = np.array([gone if cell == "" else known.get(cell, unseen) for cell in text], dtype=np.int64)
        return ColumnUse(
            _indicators(places, nowhere),
            imputed=text.count(""),
            # Rare categories of training are in "other" too, and cannot be told from unseen ones: both are counted.
            unseen=sum(cell != "" and cell not in known for cell in text) if known else 0,
        )

    def to_config(self) -> dict[str, object]:
        """What `from_config` reads."""
        return {"kind": "text", **vars(self), "categories": list(self.categories)}

    @classmethod
    def from_config(cls, config: object) -> TextColumn:
        """Read back, with every field checked."""
        return cls(
            saved.text(config, "name"),
            saved.distinct_texts(config, "categories"),
            saved.flag(config, "other"),
            saved.flag(config, "missing"),
        )


def finite_numbers(name: str, cells: Cells, rows: list[object]) -> Float[np.ndarray, " rows"]:
    """The cells of a column as numbers, NaN where missing; text and infinities are errors that name their row."""
    numbers = as_numbers(cells)
    place = first_text(as_text(cells)) if numbers is None else first_unusable(numbers)
    if numbers is not None and place is None:
        return numbers
    raise BadTable(
        f"Column {name!r} must hold finite numbers" + (", as it did in training" if numbers is None else ""),
        got=f"{str(cells[place or 0])[:60]!r} in row {rows[place or 0]}",
        remedy="Correct the value, or leave it empty if it is missing.",
    )


def _indicators(places: Int[np.ndarray, " rows"], features: int) -> Float[np.ndarray, "rows features"]:
    """One row of zeros with a one at its place; a place past the end is none."""
    return (places[:, None] == np.arange(features)).astype(np.float64)


def moments(numbers: Float[np.ndarray, " rows"]) -> tuple[float, float]:
    """Mean and standard deviation (1 in place of 0), scaled so that no square under- or overflows."""
    mean = float(numbers.mean())
    scale = float(np.abs(numbers - mean).max())
    if scale < np.finfo(np.float64).tiny:
        return mean, 1.0
    return mean, scale * float(np.sqrt(np.mean(((numbers - mean) / scale) ** 2)))
