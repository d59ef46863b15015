"""Training steps and passes over the data."""

from __future__ import annotations

import math

from bayesrule.train.member_loop import batch_size
from bayesrule.train.members import Settings


def steps_per_pass(rows: int, settings: Settings) -> float:
    """How many steps read as many rows as one member trains on, if there are so many training rows."""
    folds = settings.for_rows(rows).folds
    return max(1.0, rows * (folds - 1) / folds / batch_size(rows))


def steps_of(epochs: int, rows: int, settings: Settings) -> int:
    """Steps that make up so many passes."""
    return math.ceil(epochs * steps_per_pass(rows, settings))
