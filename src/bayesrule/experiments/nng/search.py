"""The search over λ, step size and prior scale by validation rows, the same grid for every method.

All points of the grid and all splits of a data set are replicas of one program. What it finds is written into
`settings.json` by `choices.with_choices`, and the tables use it from there; test rows are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from statistics import fmean

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment, Preset
from bayesrule.experiments.nng.choices import FIELDS, words
from bayesrule.experiments.nng.data import known_sets, splits_of, tables
from bayesrule.experiments.nng.protocol import Setting, Stacked, as_cell, by_split, scores, validation_split
from bayesrule.experiments.nng.regression import DEVIATIONS, METHODS, QUICK_SETS
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table

METRICS = ("valid_log_likelihood", "valid_rmse", "chosen")
GRID = {"kl_weight": [0.02, 0.05, 0.1, 0.2, 0.5, 1.0], "lr": [0.003, 0.01], "prior_std": [0.5, 1.0]}
Point = Mapping[str, float]


def grid(context: Context) -> list[Point]:
    """All combinations."""
    ranges = context.preset.settings["grid"]
    return [dict(zip(FIELDS.values(), each, strict=True)) for each in product(*(ranges[f] for f in FIELDS.values()))]


def run(context: Context) -> list[Row]:
    """Validation scores of every point; the chosen one has the highest log-likelihood, a mean over splits."""
    rows = []
    for table in tables(context):
        for method in context.methods:
            rows += _rows(table.name, method, _measured(context, table, method))
    return rows


def _measured(context: Context, table: Table, method: str) -> dict[str, dict[str, list[float]]]:
    """By point: scores split by split."""
    points, count = grid(context), splits_of(context, table)
    cell = context.cell(table.name, method, compute=lambda: _scores(context, table, method, points, count))
    parts = {metric: by_split(cell, metric) for metric in ("log_likelihood", "rmse")}
    return {
        words(point): {metric: found[number * count : (number + 1) * count] for metric, found in parts.items()}
        for number, point in enumerate(points)
    }


def _scores(context: Context, table: Table, method: str, points: list[Point], count: int) -> dict[str, float]:
    settings = context.preset.settings
    base = Setting(method, epochs=settings["epochs"], samples=settings["samples"])
    base = base.changed({**settings["deviations"].get(table.name, {}), "epochs": settings["epochs"]})
    data = Stacked.of([validation_split(table, number) for number in range(count)])
    replicas = [base.changed(point) for point in points for _ in range(count)]
    seeds = [context.seed + number for _ in points for number in range(count)]
    return as_cell(scores(replicas, data.repeated(len(points)), table.name, seeds))


def _rows(dataset: str, method: str, found: Mapping[str, Mapping[str, list[float]]]) -> list[Row]:
    best = max(found, key=lambda point: fmean(found[point]["log_likelihood"]))
    rows = []
    for point, cell in found.items():
        named = {"dataset": dataset, "method": method, "variant": point}
        rows += [Row.over(cell[name], metric=f"valid_{name}", **named) for name in ("log_likelihood", "rmse")]
        rows.append(Row(dataset, method, point, "chosen", float(point == best), None, len(cell["rmse"])))
    return rows


SEARCH = Experiment(
    id="nng/search",
    title="Noisy natural gradient: the search over λ, step size and prior on validation rows",
    presets={
        "smoke": Preset(
            ("yacht",), METHODS,
            {"splits": 2, "epochs": 2, "samples": 4, "deviations": {},
             "grid": {"kl_weight": [0.1, 1.0], "lr": [0.01], "prior_std": [1.0]}},
            synthetic=True,
        ),
        "quick": Preset(
            ("yacht", "boston"), METHODS,
            {"splits": 2, "epochs": 100, "samples": 50, "deviations": {},
             "grid": {"kl_weight": [0.05, 0.2, 1.0], "lr": [0.01], "prior_std": [1.0]}},
        ),
        "paper": Preset(
            QUICK_SETS, METHODS,
            {"splits": 5, "epochs": 500, "samples": 100, "deviations": DEVIATIONS, "grid": GRID},
        ),
    },
    methods=(*METHODS, "noisy-kfac-exact"),
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(),
    published=Path(__file__).with_name("published") / "search.json",
)  # fmt: skip
"""The choice for data sets that are not among `QUICK_SETS` is the entry for every data set: they test it."""
