"""The table of methods, with the best of each column marked, and the numbers at the head of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bayesrule.report.content import Method
from bayesrule.report.numbers import count, duration, number, percent
from bayesrule.report.predictions import Classification, Regression


@dataclass(frozen=True)
class Metric:
    """A column: how its numbers are written, and what is lost by one (the best loses least)."""

    key: str
    name: str
    words: Callable[[float], str]
    loss: Callable[[float], float]
    meaning: str


NLL = Metric("test_nll", "NLL", number, lambda value: value, "Negative log-likelihood per example: lower is better.")
CLASSIFICATION = (
    NLL,
    Metric("test_accuracy", "Accuracy", percent, lambda value: -value, "Share of right answers."),
    Metric("test_ece", "ECE", number, lambda value: value, "Expected calibration error: 0 is perfectly honest."),
)
REGRESSION = (
    NLL,
    Metric("test_rmse", "RMSE", number, lambda value: value, "Root mean square error, in units of the target."),
    Metric("test_coverage_90", "90 % coverage", percent, lambda value: abs(value - 0.9), "Should be 90 %."),
)


@dataclass(frozen=True)
class Card:
    """One number at the head of the page."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Cell:
    """A number of the table."""

    words: str
    best: bool


@dataclass(frozen=True)
class ComparisonRow:
    """A method."""

    name: str
    ours: bool
    cells: Sequence[Cell]
    parameters: str
    seconds: str


def metrics_of(predictions: Classification | Regression) -> tuple[Metric, ...]:
    """The columns of a task."""
    return CLASSIFICATION if isinstance(predictions, Classification) else REGRESSION


def cards(metrics: Mapping[str, float], columns: Sequence[Metric]) -> list[Card]:
    """Those of the metrics that are given."""
    return [
        Card(column.name, column.words(metrics[column.key]), column.meaning)
        for column in columns
        if column.key in metrics
    ]


def comparison_rows(methods: Sequence[Method], columns: Sequence[Metric]) -> list[ComparisonRow]:
    """The rows in the order given."""
    best = {column.key: _best(methods, column) for column in columns}

    def cell(method: Method, column: Metric) -> Cell:
        value = method.metrics.get(column.key, math.nan)
        words = column.words(value)
        return Cell(words, best=words == best[column.key])

    return [
        ComparisonRow(
            method.name, method.ours, [cell(method, column) for column in columns],
            count(method.parameters), duration(method.seconds),
        )
        for method in methods
    ]  # fmt: skip


def _best(methods: Sequence[Method], column: Metric) -> str | None:
    """The best number as it is written, so that equal digits are equally good; None where nothing is to compare."""
    known = [
        method.metrics[column.key] for method in methods if math.isfinite(method.metrics.get(column.key, math.nan))
    ]
    return column.words(min(known, key=column.loss)) if len(known) > 1 else None


def verdict(methods: Sequence[Method]) -> str:
    """How ours compares by NLL, in a sentence; empty where nothing is to compare."""
    known = {method.name: method for method in methods if math.isfinite(method.metrics.get(NLL.key, math.nan))}
    ours = [method for method in known.values() if method.ours]
    others = [method for method in known.values() if not method.ours]
    if not ours or not others:
        return ""
    nll = ours[0].metrics[NLL.key]
    best = min(others, key=lambda method: method.metrics[NLL.key])
    rival = number(best.metrics[NLL.key])
    beaten = [method.name for method in others if nll < method.metrics[NLL.key]]
    if len(beaten) == len(others):
        return f"This model has the lowest test NLL: {number(nll)}, next is {best.name} with {rival}."
    before = f" and before {', '.join(beaten)}" if beaten else ""
    return f"By test NLL this model ({number(nll)}) comes after {best.name} ({rival}){before}."
