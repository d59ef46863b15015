"""Training, validation and test rows, alike in their targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64, Shaped

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.random import keyed_generator

FEWEST_ROWS = 10
"""Below it, a validation or test part of one row says nothing; `split` refuses."""
BINS = 10


@dataclass(frozen=True)
class Split:
    """Row numbers of the three parts, each in increasing order; together they are all rows, each once.

    Attributes:
        train: To fit.
        valid: To choose and to calibrate.
        test: To report.
        singletons: How many classes have one example, which is in ``train`` and therefore never tested.
    """

    train: Int64[np.ndarray, " train"]
    valid: Int64[np.ndarray, " valid"]
    test: Int64[np.ndarray, " test"]
    singletons: int = 0


def split(
    n: int,
    y: Shaped[np.ndarray, " n"],
    task: str,
    seed: int,
    fractions: tuple[float, float, float] = (0.7, 0.15, 0.15),
) -> Split:
    """Split ``n`` rows at random, stratified by class or by tenths of a number's range of ranks.

    Rows are ordered by stratum, and at random within one; the test rows are every so-many-th in that order, and the
    validation rows every so-many-th of the rest. So each part has its share of each stratum to within a row or two. One
    row of each class is set aside for training first: every class is trained on.

    Args:
        n: How many rows; at least 10.
        y: The targets: classes as whole numbers, or numbers.
        task: ``"classification"`` or ``"regression"``.
        seed: Equal seeds give equal splits.
        fractions: Of train, valid and test; they add up to 1. A part with a positive one has at least one row.
    """
    _check(n, y, task, fractions)
    generator = keyed_generator(torch.device("cpu"), "split", seed)
    shuffled = torch.randperm(n, generator=generator).numpy()
    strata = y[shuffled] if task == "classification" else _tenths(y[shuffled])
    ordered = shuffled[np.argsort(strata, kind="stable")]
    _, first, counts = np.unique(y[ordered], return_index=True, return_counts=True)
    free = np.delete(ordered, first) if task == "classification" else ordered
    sizes = [max(round(fraction * n), int(fraction > 0)) for fraction in fractions[1:]]
    if sum(sizes) > free.size or sum(sizes) >= n:
        raise InvalidArgument(
            "There are too few rows for this split",
            got=f"{n} rows, {n - free.size} of them to train each class on, {sizes[0]} to validate, {sizes[1]} to test",
            remedy="Give more rows, or larger fractions to the training part.",
        )
    offsets = torch.rand(2, generator=generator).tolist()
    rest, test = _every_so_many(free, sizes[1], offsets[0])
    _, valid = _every_so_many(rest, sizes[0], offsets[1])
    train = np.setdiff1d(np.arange(n), np.concatenate([valid, test]))
    return Split(train, np.sort(valid), np.sort(test), int((counts == 1).sum()) if task == "classification" else 0)


def _every_so_many(
    rows: Int64[np.ndarray, " rows"], count: int, offset: float
) -> tuple[Int64[np.ndarray, " rest"], Int64[np.ndarray, " taken"]]:
    """The rows without, and with, ``count`` of them at equal distances, the first within the first distance."""
    taken = np.int64((np.arange(count) + offset) * rows.size / max(count, 1))
    return np.delete(rows, taken), rows[taken]


def _tenths(y: Shaped[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    ranks = np.argsort(np.argsort(y, kind="stable"), kind="stable")
    return ranks * BINS // len(y)


def _check(n: int, y: Shaped[np.ndarray, " n"], task: str, fractions: tuple[float, float, float]) -> None:
    if y.shape != (n,):
        raise ShapeMismatch(f"There must be one target for each of the {n} rows", got=y.shape)
    if task not in ("classification", "regression"):
        raise InvalidArgument("A split is for one of two tasks", got=task, remedy="Use classification or regression.")
    if n < FEWEST_ROWS:
        raise InvalidArgument(
            f"A split into train, valid and test needs at least {FEWEST_ROWS} rows", got=n, remedy="Give more data."
        )
    if min(fractions) < 0 or fractions[0] == 0 or abs(sum(fractions) - 1) > 1e-9:
        raise InvalidArgument("The fractions must be positive for train, not negative, and add up to 1", got=fractions)
