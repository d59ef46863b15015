"""The tables of the comparison with their splits, and made-up ones of the same shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from bayesrule.data.builtin_sets import BUILTIN, builtin
from bayesrule.data.uci import uci, uci_names
from bayesrule.experiments.rivals.method import Task

UCI = {
    "boston": (506, 13), "concrete": (1030, 8), "energy": (768, 8), "kin8nm": (8192, 8), "naval": (11934, 16),
    "protein": (45730, 9), "yacht": (308, 6),
}  # fmt: skip
"""Rows and features of the regression benchmark."""
CLASSES = {"digits": (1797, 64, 10), "breast-cancer": (569, 30, 2), "wine": (178, 13, 3)}
"""Rows, features and classes of scikit-learn's."""
BUILTIN_SPLITS, TRAINED_ON = 5, 0.8
Splits = tuple[tuple[Int64[np.ndarray, " train"], Int64[np.ndarray, " test"]], ...]


@dataclass(frozen=True)
class Split:
    """Training and test rows, standardised by the training rows.

    Attributes:
        x_train: Features.
        y_train: Numbers, standardised; or classes.
        x_test: Features.
        y_test: As ``y_train``.
        scale: Of the numbers; 1 for classes.
    """

    x_train: Float64[np.ndarray, "train features"]
    y_train: Shaped[np.ndarray, " train"]
    x_test: Float64[np.ndarray, "test features"]
    y_test: Shaped[np.ndarray, " test"]
    scale: float

    def head(self, rows: int) -> Split:
        """The first training and test rows."""
        names = ("x_train", "y_train", "x_test", "y_test")
        return replace(self, **{name: getattr(self, name)[:rows] for name in names})


@dataclass(frozen=True)
class Table:
    """A data set and the rows each of its splits trains and tests on."""

    name: str
    task: Task
    x: Float64[np.ndarray, "rows features"]
    y: Shaped[np.ndarray, " rows"]
    splits: Splits

    def split(self, number: int) -> Split:
        """One of them, standardised."""
        train, test = self.splits[number]
        center, spread = _moments(self.x[train])
        x_train, x_test = ((self.x[rows] - center) / spread for rows in (train, test))
        if self.task == "classification":
            return Split(x_train, self.y[train], x_test, self.y[test], 1.0)
        mean, scale = map(float, _moments(self.y[train]))
        return Split(x_train, (self.y[train] - mean) / scale, x_test, (self.y[test] - mean) / scale, scale)


def task_of(name: str) -> Task:
    """What a data set poses: a UCI set a regression."""
    return BUILTIN.get(name, "regression")


def known_tables(data: Path | None) -> list[str]:
    """The standard ones, and what else lies in the data folders."""
    standard = [*UCI, *CLASSES, *(name for name in BUILTIN if name not in CLASSES)]
    return standard + [name for name in uci_names(data) if name not in standard]


def real_table(name: str, data: Path | None) -> Table:
    """A UCI set with its own splits, or one of scikit-learn's with five of 80 to 20 %."""
    return _builtin_table(name) if name in BUILTIN else _uci_table(name, data)


def _uci_table(name: str, data: Path | None) -> Table:
    stored = uci(name, data)
    splits = tuple(zip(stored.train_index, stored.test_index, strict=True))
    return Table(name, "regression", stored.x, stored.y, splits)


def _builtin_table(name: str) -> Table:
    stored = builtin(name)
    target = stored.frame[stored.target]
    x = stored.frame.drop(columns=stored.target).to_numpy(dtype=np.float64)
    if stored.task == "regression":
        return Table(name, stored.task, x, target.to_numpy(dtype=np.float64), permutation_splits(len(x)))
    y = np.unique(target.to_numpy(dtype=str), return_inverse=True)[1].astype(np.int64)
    return Table(name, stored.task, x, y, permutation_splits(len(x)))


def synthetic_table(name: str) -> Table:
    """As many rows, features and classes as the real one, the targets a noisy function of the features."""
    rows, features, *classes = UCI.get(name) or CLASSES.get(name) or (442, 10)
    random = np.random.RandomState(rows)
    x = random.standard_normal((rows, features))
    scores = np.tanh(x @ random.standard_normal((features, max(classes, default=1)))) * 2
    scores = scores + 0.3 * random.standard_normal(scores.shape)
    y = scores.argmax(1) if len(classes) == 1 else scores[:, 0]
    return Table(name, task_of(name), x, y, permutation_splits(rows))


def permutation_splits(rows: int) -> Splits:
    """Split i is the permutation of ``RandomState(i)``, cut at 80 %."""
    orders = [np.random.RandomState(number).permutation(rows) for number in range(BUILTIN_SPLITS)]
    return tuple((order[: round(TRAINED_ON * rows)], order[round(TRAINED_ON * rows) :]) for order in orders)


def _moments(values: Float64[np.ndarray, rows * rest]) -> tuple[Any, Any]:
    """Mean and standard deviation of each column; 1 where nothing varies."""
    mean, std = values.mean(0), values.std(0)
    return mean, np.where(std > 1e-12 * np.abs(values).max(0), std, 1.0)
