"""The default model of a table beside what people would pick instead, on the standard splits."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

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
from bayesrule.experiments.tabular_scores import pooled_ece, scores

NUMBERS = ("log_likelihood", "rmse", "coverage_90", "seconds")
CLASS_METRICS = ("nll", "accuracy", "ece", "ece_pooled", "seconds")
"""``ece`` is the mean over splits, ``ece_pooled`` that of all their test rows; ``seconds`` are processor time."""
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
    with one_thread():
        return [row for table in tables for name in context.methods for row in _rows(context, table, METHODS[name])]


def _rows(context: Context, table: Table, method: Method) -> list[Row]:
    refusal = method.refusal(table.task, len(table.splits[0][0]))
    if refusal:
        context.skipped.append(f"{method.name} on {table.name}: {refusal}")
        return []
    cells = [_cell(context, table, method, number) for number in range(splits_of(table, context.preset))]
    return [_row(cells, table.name, method, metric) for metric in measured(table.name)]


def _row(cells: Sequence[Mapping[str, float]], dataset: str, method: Method, metric: str) -> Row:
    if metric == "ece_pooled":
        return Row(dataset, method.name, method.variant, metric, pooled_ece(cells), None, len(cells))
    values = [cell[metric] for cell in cells]
    return Row.over(values, dataset=dataset, method=method.name, variant=method.variant, metric=metric)


def splits_of(table: Table, preset: Preset) -> int:
    """How many of the table's splits a preset measures: its number, or fewer where it names the table."""
    settings = preset.settings
    return min(len(table.splits), settings.get("fewer_splits", {}).get(table.name, settings["splits"]))


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
    """The metrics of one method on one split, in the target's own units.

    ``seconds`` are the processor's, to train and to predict the test rows, on one thread: on a machine that others use
    too a clock on the wall measures them.
    """
    classes = split.y_train.dtype.kind == "i"
    fit = method.fit("classification" if classes else "regression")
    if fit is None:
        raise InvalidArgument(f"{method.name} is not for this task")
    started = time.process_time()
    predictive = fit(split.x_train, split.y_train, split.x_test, options)
    seconds = time.process_time() - started
    return {**scores(predictive, split), "seconds": seconds}


@contextmanager
def one_thread() -> Iterator[None]:
    """Times are of one thread, on which networks this small are also fastest; rivals compute with BLAS and OpenMP."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


SPLITS = 5
FEWER_SPLITS = {"kin8nm": 2, "naval": 2, "protein": 1}
"""Of the 20 standard splits (Protein: 5) the first five are measured, and of the large sets these: an hour in all."""
QUICK_SETS = ("yacht", "boston", "energy", "concrete", "wine", "breast-cancer", "digits")

TABULAR = Experiment(
    id="tabular",
    title="The default model of a table, beside what people would pick instead",
    presets={
        "smoke": Preset(("yacht", "wine"), tuple(METHODS), {"splits": 1, "steps": 20}, synthetic=True),
        "quick": Preset(QUICK_SETS, tuple(METHODS), {"splits": 1, "steps": None}),
        "paper": Preset(
            (*UCI, *CLASSES), tuple(METHODS), {"splits": SPLITS, "fewer_splits": FEWER_SPLITS, "steps": None}
        ),
    },
    methods=tuple(METHODS),
    datasets=known_tables,
    metrics=measured,
    run=run,
    claims=CLAIMS,
    published=Path(__file__).with_name("tabular.json"),
    packages=("scikit-learn", "ngboost", "catboost", "laplace-torch"),
)
