"""The default model of a table beside what people would pick instead, on the standard splits."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from bayesrule import metrics
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment, Preset
from bayesrule.experiments.rivals import METHODS, Method, Options
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_claims import CLAIMS
from bayesrule.experiments.tabular_data import (
    CLASSES,
    UCI,
    Split,
    Table,
    known_tables,
    real_table,
    synthetic_table,
    task_of,
)
from bayesrule.predict import Predictive

NUMBERS = ("log_likelihood", "rmse", "coverage_90", "seconds")
CLASS_METRICS = ("nll", "accuracy", "ece", "seconds")
WARM_UP_ROWS = 100
_USED: set[tuple[str, str]] = set()


def measured(name: str) -> tuple[str, ...]:
    """The metrics of a data set."""
    return NUMBERS if task_of(name) == "regression" else CLASS_METRICS


def run(context: Context) -> list[Row]:
    """Every method on every split of every table; each of these is a cell."""
    synthetic = context.preset.synthetic
    # All are read first: a missing file is told before any work, not after hours of it.
    tables = [synthetic_table(name) if synthetic else real_table(name, context.data) for name in context.datasets]
    with _one_thread():
        return [row for table in tables for name in context.methods for row in _rows(context, table, METHODS[name])]


def _rows(context: Context, table: Table, method: Method) -> list[Row]:
    refusal = method.refusal(table.task, len(table.splits[0][0]))
    if refusal:
        context.skipped.append(f"{method.name} on {table.name}: {refusal}")
        return []
    count = min(len(table.splits), context.preset.settings["splits"] or len(table.splits))
    cells = [_cell(context, table, method, number) for number in range(count)]
    return [
        Row.over(
            [cell[metric] for cell in cells],
            dataset=table.name, method=method.name, variant=method.variant, metric=metric,
        )
        for metric in measured(table.name)
    ]  # fmt: skip


def _cell(context: Context, table: Table, method: Method, number: int) -> dict[str, float]:
    options = Options(context.seed + number, context.preset.settings["steps"])
    return context.cell(
        table.name, method.name, f"split {number}", compute=lambda: _measured_warm(table.split(number), method, options)
    )


def _measured_warm(split: Split, method: Method, options: Options) -> dict[str, float]:
    """`measure`, after a first use that is not timed: it imports and compiles."""
    if (method.name, split.y_train.dtype.kind) not in _USED:
        measure(split.head(WARM_UP_ROWS), method, replace(options, steps=1))
        _USED.add((method.name, split.y_train.dtype.kind))
    return measure(split, method, options)


def measure(split: Split, method: Method, options: Options) -> dict[str, float]:
    """The metrics of one method on one split, in the target's own units; time is that to train and to predict."""
    classes = split.y_train.dtype.kind == "i"
    fit = method.fit("classification" if classes else "regression")
    if fit is None:
        raise InvalidArgument(f"{method.name} is not for this task")
    started = time.perf_counter()
    predictive = fit(split.x_train, split.y_train, split.x_test, options)
    seconds = time.perf_counter() - started
    found = _of_classes(predictive, split) if classes else _of_numbers(predictive, split)
    return {**found, "seconds": seconds}


def _of_numbers(predictive: Predictive, split: Split) -> dict[str, float]:
    y = torch.from_numpy(split.y_test).to(predictive.outputs.dtype).unsqueeze(-1)
    inside = (predictive.cdf(y) - 0.5).abs() <= 0.45
    return {
        "log_likelihood": float(predictive.log_prob(y).double().mean()) - math.log(split.scale),
        "rmse": split.scale * float(metrics.rmse(predictive.mean, y)),
        "coverage_90": float(inside.double().mean()),
    }


def _of_classes(predictive: Predictive, split: Split) -> dict[str, float]:
    y = torch.from_numpy(split.y_test)
    probs = predictive.probs.double()
    return {
        "nll": -float(predictive.log_prob(y).double().mean()),
        "accuracy": float(metrics.accuracy(probs, y)),
        "ece": float(metrics.expected_calibration_error(probs, y)),
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Times are of one thread, on which networks this small are also fastest."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


QUICK_SETS = ("yacht", "boston", "energy", "concrete", "wine", "breast-cancer", "digits")

TABULAR = Experiment(
    id="tabular",
    title="The default model of a table, beside what people would pick instead",
    presets={
        "smoke": Preset(("yacht", "wine"), tuple(METHODS), {"splits": 1, "steps": 20}, synthetic=True),
        "quick": Preset(QUICK_SETS, ("bayesrule", "point", "deep-ensemble-5"), {"splits": 1, "steps": None}),
        "paper": Preset((*UCI, *CLASSES), tuple(METHODS), {"splits": None, "steps": None}),
    },
    methods=tuple(METHODS),
    datasets=known_tables,
    metrics=measured,
    run=run,
    claims=CLAIMS,
    published=Path(__file__).with_name("tabular.json"),
    packages=("scikit-learn", "ngboost", "catboost", "laplace-torch"),
)
