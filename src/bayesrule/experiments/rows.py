"""The rows of a result, and the published numbers beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bayesrule.metrics import mean_and_sem


@dataclass(frozen=True)
class Row:
    """One number.

    Attributes:
        dataset: Measured on.
        method: That was measured.
        variant: Of the method, in words; may be empty.
        metric: What was measured.
        value: Mean over runs.
        sem: Its standard error; unknown after a single run.
        n: How many runs.
        paper: The published number; nothing is computed with it but the verdicts on claims.
        paper_sem: Its standard error.
    """

    dataset: str
    method: str
    variant: str
    metric: str
    value: float
    sem: float | None
    n: int
    paper: float | None = None
    paper_sem: float | None = None

    @classmethod
    def over(cls, values: Sequence[float], *, dataset: str, method: str, variant: str, metric: str) -> Row:
        """The mean of several runs."""
        mean, sem = mean_and_sem(torch.tensor(values, dtype=torch.float64))
        known = len(values) > 1
        return cls(dataset, method, variant, metric, mean.item(), sem.item() if known else None, len(values))


def with_published(rows: Iterable[Row], file: Path) -> list[Row]:
    """The rows, each with the published number of its data set, method and metric, if there is one."""
    entries = json.loads(file.read_text(encoding="utf-8"))["rows"]
    found = {(entry["dataset"], entry["method"], entry["metric"]): entry for entry in entries}
    return [_beside(row, found.get((row.dataset, row.method, row.metric))) for row in rows]


def _beside(row: Row, entry: dict[str, Any] | None) -> Row:
    return row if entry is None else replace(row, paper=entry["value"], paper_sem=entry.get("sem"))
