"""Training steps and passes over the data."""

from __future__ import annotations

import math

from bayesrule.train.member_loop import SMALL
from bayesrule.train.members import Settings

SMALL_BATCH, BATCH = 64, 256


def steps_per_pass(rows: int, settings: Settings) -> float:
    """How many steps read as many rows as one member trains on, if there are so many training rows."""
    own = rows * (settings.folds - 1) / settings.folds
    return max(1.0, own / (SMALL_BATCH if rows < SMALL else BATCH))


def steps_of(epochs: int, rows: int, settings: Settings) -> int:
    """Steps that make up so many passes."""
    return math.ceil(epochs * steps_per_pass(rows, settings))
