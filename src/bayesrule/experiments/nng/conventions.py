"""What the paper leaves open of noisy K-FAC, tried on validation rows under the plain setting, one change at a time.

What is taken stands in `settings.json` under ``conventions``, for all data sets and in all methods that have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.nng.choices import conventions
from bayesrule.experiments.nng.data import known_sets, tables
from bayesrule.experiments.nng.protocol import SMALL, Setting, Stacked, as_cell, by_split, scores, validation_split
from bayesrule.experiments.nng.regression import DEVIATIONS, QUICK_SETS
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table

METHOD, BASE = "noisy-kfac", "as printed"
CHANGES: Mapping[str, Mapping[str, Any]] = {
    BASE: {},
    "averages start at the prior": {"warm_up": False},
    "1000 steps without draws": {"quiet_steps": 1000},
    "He start": {"start": "he"},
    "He start, 1000 steps without draws": {"start": "he", "quiet_steps": 1000},
}
METRICS = ("valid_log_likelihood", "valid_rmse", "gain", "rmse_ratio")
"""``gain``: nats ahead of `BASE`, split by split; ``rmse_ratio`` likewise."""


def run(context: Context) -> list[Row]:
    """A cell is a data set under one convention."""
    rows = []
    for table in tables(context):
        cells = {name: _cell(context, table, name) for name in context.preset.settings["changes"]}
        for name, cell in cells.items():
            rows += _rows(table.name, name, cell, cells[BASE])
    return rows


def _cell(context: Context, table: Table, name: str) -> dict[str, float]:
    settings = context.preset.settings
    count = min(len(table.splits), settings["splits"] if len(table.x) < SMALL else settings["splits_of_large"])
    setting = Setting(METHOD, epochs=settings["epochs"], samples=settings["samples"])
    setting = setting.changed({**settings["deviations"].get(table.name, {}), **CHANGES[name]})

    def compute() -> dict[str, float]:
        data = Stacked.of([validation_split(table, number) for number in range(count)])
        seeds = [context.seed + number for number in range(count)]
        return as_cell(scores([setting] * count, data, table.name, seeds, context.device))

    return context.cell(table.name, name, compute=compute)


def _rows(dataset: str, name: str, cell: Mapping[str, float], base: Mapping[str, float]) -> list[Row]:
    densities, errors = (by_split(cell, metric) for metric in ("log_likelihood", "rmse"))
    before, errors_before = (by_split(base, metric) for metric in ("log_likelihood", "rmse"))
    values = (
        densities, errors, [own - other for own, other in zip(densities, before, strict=True)],
        [own / other for own, other in zip(errors, errors_before, strict=True)],
    )  # fmt: skip
    return [
        Row.over(each, dataset=dataset, method=METHOD, variant=name, metric=metric)
        for metric, each in zip(METRICS, values, strict=True)
    ]


def _taken(rows: Sequence[Row]) -> Verdict:
    taken = next((name for name, changes in CHANGES.items() if changes == conventions(METHOD)), None)
    gains: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == "gain":
            gains.setdefault(row.variant, []).append(row.value)
    if taken not in gains:
        return Verdict("not measured", f"needs {taken}")
    told = ", ".join(f"{name} {fmean(each):+.4f}" for name, each in gains.items() if name != BASE)
    return Verdict.of(fmean(gains[taken]) >= max(fmean(each) for each in gains.values()), told)


def _settings(changes: Sequence[str] = tuple(CHANGES), **sizes: Any) -> dict[str, Any]:
    return {"changes": list(changes), "deviations": {}, **sizes}


CONVENTIONS = Experiment(
    id="nng/conventions",
    title="Noisy natural gradient: conventions the paper leaves open, on validation rows",
    presets={
        "smoke": Preset(
            ("yacht",), (METHOD,),
            _settings(tuple(CHANGES)[:3], splits=2, splits_of_large=2, epochs=2, samples=4), synthetic=True,
        ),
        "quick": Preset(
            ("yacht", "boston"), (METHOD,),
            _settings(tuple(CHANGES)[:3], splits=5, splits_of_large=2, epochs=200, samples=100),
        ),
        "paper": Preset(
            (*QUICK_SETS, "kin8nm", "naval"), (METHOD,),
            {**_settings(splits=20, splits_of_large=10, epochs=1000, samples=100),
             "deviations": DEVIATIONS},
        ),
    },
    methods=(METHOD,),
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(Claim("what settings.json takes has the highest mean validation log-likelihood of all", _taken),),
    published=Path(__file__).with_name("published") / "search.json",
    devices=("cuda", "cpu"),
)  # fmt: skip
