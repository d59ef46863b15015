"""The target: which task it poses, and how its values become classes or standardised numbers and back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Float32, Int64

from bayesrule.data import config as saved
from bayesrule.data.columns import BadTable, as_numbers, as_text, cells_of, named_columns
from bayesrule.data.features import finite_numbers, moments
from bayesrule.data.names import nearest

Task = Literal["regression", "classification"]
MOST_INTEGER_CLASSES = 20
ROWS_PER_INTEGER_CLASS = 5


class Recognised(NamedTuple):
    """A task, and what in the target says so."""

    task: Task
    reason: str


class Separated(NamedTuple):
    """Features and target of the rows whose target is known, and how many rows that left out."""

    features: pd.DataFrame
    target: pd.Series
    without_target: int


def separate_target(frame: pd.DataFrame, target: str) -> Separated:
    """Take the target's column out of a table; rows where it is missing are dropped and counted."""
    frame = named_columns(frame)
    if target not in frame.columns:
        raise BadTable(
            f"The table has no column {target!r}",
            got=", ".join(map(repr, frame.columns[:20])),
            remedy=f"{nearest(target, frame.columns)}Name one of its columns as the target.",
        )
    cells = cells_of(frame[target])
    known = ~np.isnan(cells) if isinstance(cells, np.ndarray) else np.array([cell != "" for cell in cells], dtype=bool)
    if not known.any():
        raise BadTable(f"The target {target!r} has no values", remedy="Name a column that is known for some rows.")
    rows = frame.loc[known]
    return Separated(rows.drop(columns=target), rows[target], int((~known).sum()))


def recognise_target(series: pd.Series) -> Recognised:
    """Classification for text, booleans and categories, and for few different whole numbers; else regression.

    Whole numbers are classes if there are two of them, or at most 20 with five rows to each on average.
    """
    cells = cells_of(series)
    if not isinstance(cells, np.ndarray):
        return Recognised("classification", f"{series.name} is text with {len(set(cells) - {''})} different values")
    numbers = cells[~np.isnan(cells)]
    distinct = np.unique(numbers).size
    if not (np.isfinite(numbers).all() and (numbers == np.round(numbers)).all()):
        return Recognised("regression", f"{series.name} holds numbers with fractions")
    few = distinct <= 2 or (distinct <= MOST_INTEGER_CLASSES and numbers.size >= ROWS_PER_INTEGER_CLASS * distinct)
    said = f"{series.name} holds {distinct} different whole numbers in {numbers.size} rows"
    return Recognised("classification" if few else "regression", said)


@dataclass(frozen=True)
class ClassTarget:
    """Classes by name, in order (of number where all are numbers); class ``i`` is ``classes[i]``."""

    name: str
    classes: tuple[str, ...]
    task: Literal["classification"] = "classification"

    @classmethod
    def fit(cls, series: pd.Series) -> ClassTarget:
        """From the targets of all rows, so that no part of a split has a class the others do not know."""
        counts = Counter(as_text(cells_of(series)))
        counts.pop("", None)
        labels = sorted(counts)
        if len(labels) < 2:
            raise BadTable(
                f"The target {series.name!r} has one class only",
                got=", ".join(map(repr, labels)) or "no values",
                remedy="Name another column as the target, or give rows of at least two classes.",
            )
        if len(labels) > max(2, counts.total() // 2):
            raise BadTable(
                f"The target {series.name!r} has too many classes to learn",
                got=f"{len(labels)} classes in {counts.total()} rows",
                remedy="Name another column as the target, or ask for regression if it holds numbers.",
            )
        numbers = as_numbers(labels)
        if numbers is not None:
            labels = [labels[place] for place in np.argsort(numbers, kind="stable")]
        return cls(str(series.name), tuple(labels))

    def encode(self, series: pd.Series) -> Int64[np.ndarray, " rows"]:
        """Each row's class as its place in ``classes``."""
        known = {label: place for place, label in enumerate(self.classes)}
        cells = as_text(cells_of(series))
        for row, cell in zip(series.index, cells, strict=True):
            if cell not in known:
                raise BadTable(
                    f"The target {self.name!r} has a class that training did not have",
                    got=f"{cell!r} in row {row}" if cell else f"no value in row {row}",
                    remedy=f"{nearest(cell, known)}Known: {', '.join(self.classes[:20])}.",
                )
        return np.array([known[cell] for cell in cells], dtype=np.int64)

    def decode(self, indices: Int64[np.ndarray, " rows"]) -> list[str]:
        """The names of classes by their places."""
        return [self.classes[index] for index in indices]

    def to_config(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"task": self.task, "name": self.name, "classes": list(self.classes)}


@dataclass(frozen=True)
class NumberTarget:
    """Numbers, standardised by the mean and standard deviation of the training rows."""

    name: str
    mean: float
    std: float
    task: Literal["regression"] = "regression"

    @classmethod
    def fit(cls, series: pd.Series) -> NumberTarget:
        """From the targets of the training rows."""
        numbers = _known_numbers(str(series.name), series)
        if numbers.size == 0 or numbers.min() == numbers.max():
            raise BadTable(
                f"The target {series.name!r} is constant",
                got=f"{numbers[0]} in all {numbers.size} rows" if numbers.size else "no rows",
                remedy="Name a column that varies as the target.",
            )
        return cls(str(series.name), *moments(numbers))

    def encode(self, series: pd.Series) -> Float32[np.ndarray, " rows"]:
        """``(y − mean) / std``."""
        with np.errstate(over="ignore"):
            standardised = ((_known_numbers(self.name, series) - self.mean) / self.std).astype(np.float32)
        if not np.isfinite(standardised).all():
            row = int(np.flatnonzero(~np.isfinite(standardised))[0])
            raise BadTable(
                f"The target {self.name!r} is absurdly far from its values in training",
                got=f"{series.iloc[row]} in row {series.index[row]}, for a standard deviation of {self.std}",
                remedy="Correct the value, or leave it empty.",
            )
        return standardised

    def decode(self, standardised: Float[np.ndarray, " ..."]) -> Float[np.ndarray, " ..."]:
        """``mean + std·z``, in double precision."""
        return self.mean + self.std * standardised.astype(np.float64)

    def to_config(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"task": self.task, "name": self.name, "mean": self.mean, "std": self.std}


def fit_target(series: pd.Series, task: Task) -> ClassTarget | NumberTarget:
    """The target for a task."""
    return ClassTarget.fit(series) if task == "classification" else NumberTarget.fit(series)


def target_from_config(config: object) -> ClassTarget | NumberTarget:
    """What ``to_config`` wrote, read back with every field checked."""
    task, name = saved.text(config, "task"), saved.text(config, "name")
    if task == "regression":
        return NumberTarget(name, saved.number(config, "mean"), saved.number(config, "std", positive=True))
    classes = saved.distinct_texts(config, "classes") if task == "classification" else ()
    if len(classes) < 2:
        raise saved.BadConfig("The saved target is damaged", got=f"task {task!r} with {len(classes)} classes")
    return ClassTarget(name, classes)


def _known_numbers(name: str, series: pd.Series) -> Float[np.ndarray, " rows"]:
    numbers = finite_numbers(name, cells_of(series), series.index.tolist())
    missing = np.flatnonzero(np.isnan(numbers))
    if missing.size:
        raise BadTable(
            f"The target {name!r} is missing for {missing.size} rows",
            got=f"no value in row {series.index[missing[0]]}",
            remedy="Leave those rows out (separate_target does).",
        )
    return numbers
