"""What the paper leaves open of noisy K-FAC and noisy Adam, tried on validation rows, one change at a time.

What is taken stands in `settings.json` under ``conventions``, for all data sets: of all methods, and of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.nng.choices import conventions
from bayesrule.experiments.nng.data import known_sets, tables
from bayesrule.experiments.nng.protocol import SMALL, Setting, Stacked, as_cell, by_split, scores, validation_split
from bayesrule.experiments.nng.regression import DEVIATIONS, QUICK_SETS, TWO_LAYERS
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table

BASE = "as printed"
QUIET = {"quiet_steps": 1000}
CHANGES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "noisy-kfac": {
        BASE: {},
        "averages start at the prior": {"warm_up": False},
        "1000 steps without draws": QUIET,
        "He start": {"start": "he"},
        "He start, 1000 steps without draws": {"start": "he", **QUIET},
    },
    "noisy-adam": {
        BASE: {},
        "1000 steps without draws": QUIET,
        "1000 steps without draws, at most 0.001 nats a step": {**QUIET, "max_kl": 0.001},
        "1000 steps without draws, at most 0.0003 nats a step": {**QUIET, "max_kl": 0.0003},
        "1000 steps without draws, at most 0.0001 nats a step": {**QUIET, "max_kl": 0.0001},
    },
}
"""By method. The guard on the step is 0.01 nats where nothing is said."""
NETWORKS = {"noisy-adam": TWO_LAYERS}
"""Hidden layers where changes of a method are tried; else the tables' own. Noisy Adam fails first in deep networks."""
METHODS = tuple(CHANGES)
METRICS = ("valid_log_likelihood", "valid_rmse", "gain", "rmse_ratio")
"""``gain``: nats ahead of `BASE`, split by split; ``rmse_ratio`` likewise."""


def run(context: Context) -> list[Row]:
    """A cell is a data set and a method under one convention."""
    rows = []
    for table in tables(context):
        for method in context.methods:
            names = list(CHANGES[method])[: context.preset.settings["changes"]]
            cells = {name: _cell(context, table, method, name) for name in names}
            for name, cell in cells.items():
                rows += _rows(table.name, method, name, cell, cells[BASE])
    return rows


def _cell(context: Context, table: Table, method: str, name: str) -> dict[str, float]:
    settings = context.preset.settings
    count = min(len(table.splits), settings["splits"] if len(table.x) < SMALL else settings["splits_of_large"])
    setting = Setting(method, epochs=settings["epochs"], samples=settings["samples"])
    setting = setting.changed(
        {"hidden": NETWORKS.get(method), **settings["deviations"].get(table.name, {}), **CHANGES[method][name]}
    )

    def compute() -> dict[str, float]:
        data = Stacked.of([validation_split(table, number) for number in range(count)])
        seeds = [context.seed + number for number in range(count)]
        return as_cell(scores([setting] * count, data, table.name, seeds, context.device))

    return context.cell(table.name, method, name, compute=compute)


def _rows(dataset: str, method: str, name: str, cell: Mapping[str, float], base: Mapping[str, float]) -> list[Row]:
    densities, errors = (by_split(cell, metric) for metric in ("log_likelihood", "rmse"))
    before, errors_before = (by_split(base, metric) for metric in ("log_likelihood", "rmse"))
    values = (
        densities, errors, [own - other for own, other in zip(densities, before, strict=True)],
        [own / other for own, other in zip(errors, errors_before, strict=True)],
    )  # fmt: skip
    return [
        Row.over(each, dataset=dataset, method=method, variant=name, metric=metric)
        for metric, each in zip(METRICS, values, strict=True)
    ]


def _taken(method: str, rows: Sequence[Row]) -> Verdict:
    taken = next((name for name, changes in CHANGES[method].items() if changes == conventions(method)), None)
    gains: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == "gain" and row.method == method:
            gains.setdefault(row.variant, []).append(row.value)
    if taken not in gains:
        return Verdict("not measured", f"needs {taken}")
    told = ", ".join(f"{name} {fmean(each):+.4f}" for name, each in gains.items() if name != BASE)
    return Verdict.of(fmean(gains[taken]) >= max(fmean(each) for each in gains.values()), told)


def _settings(changes: int | None = None, **sizes: Any) -> dict[str, Any]:
    """The first changes of each method; None for all."""
    return {"changes": changes, "deviations": {}, **sizes}


CONVENTIONS = Experiment(
    id="nng/conventions",
    title="Noisy natural gradient: conventions the paper leaves open, on validation rows",
    presets={
        "smoke": Preset(
            ("yacht",), METHODS, _settings(3, splits=2, splits_of_large=2, epochs=2, samples=4), synthetic=True
        ),
        "quick": Preset(
            ("yacht", "boston"), METHODS, _settings(3, splits=5, splits_of_large=2, epochs=200, samples=100)
        ),
        "paper": Preset(
            (*QUICK_SETS, "kin8nm", "naval"), METHODS,
            {**_settings(splits=20, splits_of_large=10, epochs=1000, samples=100), "deviations": DEVIATIONS},
        ),
    },
    methods=METHODS,
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=tuple(
        Claim(
            f"{method}: what settings.json takes has the highest mean validation log-likelihood of all",
            partial(_taken, method),
        )
        for method in METHODS
    ),
    published=Path(__file__).with_name("published") / "search.json",
    devices=("cuda", "cpu"),
)  # fmt: skip
