"""The search over λ, step size, prior scale and β by validation rows, the same grid for every method.

All points of the grid and all splits of a data set are replicas of one program for each β. What it finds is written
into `settings.json` by `choices`, and the tables use it from there; test rows are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bayesrule.errors import InvalidArgument
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment, Preset
from bayesrule.experiments.nng.choices import (
    PLAIN_NOISE,
    SEARCHED_AS,
    TIE,
    WEAK_NOISE,
    WITHOUT,
    Point,
    best,
    best_for_all,
    conventions,
    point_of,
    words,
)
from bayesrule.experiments.nng.data import known_sets, tables
from bayesrule.experiments.nng.protocol import Setting, Stacked, as_cell, by_split, mark, scores, validation_split
from bayesrule.experiments.nng.regression import DEVIATIONS, METHODS, QUICK_SETS, T_INV
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table

METRICS = ("valid_log_likelihood", "valid_rmse", "chosen", "chosen_for_all")
NOISES = [list(PLAIN_NOISE), list(WEAK_NOISE)]
GRID = {
    "kl_weight": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0], "lr": [0.003, 0.01, 0.03], "prior_std": [0.5, 1.0],
    "beta": [0.001, 0.01], "noise_prior": NOISES,
}  # fmt: skip
SEARCHED = tuple(method for method in METHODS if method not in SEARCHED_AS)
LARGE_SETS = ("kin8nm", "naval", "protein")
SIZES = {
    "concrete": {"epochs": 500}, "energy": {"epochs": 500}, "kin8nm": {"splits": 3, "epochs": 200},
    "naval": {"splits": 3, "epochs": 100}, "protein": {"splits": 2, "epochs": 20},
}  # fmt: skip
"""Fewer splits and epochs where an epoch has many steps; the same for every method."""


def grid(context: Context, method: str) -> list[Point]:
    """All combinations."""
    ranges: Mapping[str, list[Any]] = context.preset.settings["grid"]
    names = [name for name in ranges if name not in WITHOUT.get(method, ())]
    return [dict(zip(names, each, strict=True)) for each in product(*(ranges[name] for name in names))]


def run(context: Context) -> list[Row]:
    """Validation scores of the points that are close to the best of a set, and of the one that is chosen for all."""
    sets = tables(context)
    rows = []
    for method in context.methods:
        rows += _rows(method, {table.name: _measured(context, table, method) for table in sets})
    return rows


def _measured(context: Context, table: Table, method: str) -> dict[str, dict[str, list[float]]]:
    """By point: scores split by split. A cell is what one program trains."""
    found: dict[str, dict[str, list[float]]] = {}
    for points in programs(context, method):
        found |= measured(context, table, method, points)
    return found


def programs(context: Context, method: str) -> list[list[Point]]:
    """Points by β, which replicas of one program share."""
    points = grid(context, method)
    rates = dict.fromkeys(point.get("beta") for point in points)
    return [[point for point in points if point.get("beta") == rate] for rate in rates]


def measured(context: Context, table: Table, method: str, points: list[Point]) -> dict[str, dict[str, list[float]]]:
    """Scores of some points, split by split."""
    count = min(len(table.splits), _size(context, table.name)["splits"])
    key = mark(points, conventions(method))
    cell = context.cell(table.name, method, key, compute=lambda: _scores(context, table, method, points, count))
    parts = {metric: by_split(cell, metric) for metric in ("log_likelihood", "rmse")}
    return {
        words(point): {metric: found[number * count : (number + 1) * count] for metric, found in parts.items()}
        for number, point in enumerate(points)
    }


def _scores(context: Context, table: Table, method: str, points: list[Point], count: int) -> dict[str, float]:
    settings, sizes = context.preset.settings, _size(context, table.name)
    base = Setting(method, samples=settings["samples"], T_inv=T_INV.get(method)).changed(conventions(method))
    base = base.changed({**settings["deviations"].get(table.name, {}), "epochs": sizes["epochs"]})
    data = Stacked.of([validation_split(table, number) for number in range(count)])
    replicas = [base.changed(point) for point in points for _ in range(count)]
    seeds = [context.seed + number for _ in points for number in range(count)]
    return as_cell(_attempted(replicas, data.repeated(len(points)), table.name, seeds, context.device))


def _attempted(
    settings: Sequence[Setting], data: Stacked, dataset: str, seeds: Sequence[int], device: torch.device
) -> dict[str, list[float]]:
    """Scores; where a run diverges, those of each step size apart, and the worst there are for a step too large."""
    try:
        return scores(settings, data, dataset, seeds, device)
    except InvalidArgument:
        rates = sorted({setting.lr for setting in settings})
        if len(rates) == 1:
            return {"rmse": [math.inf] * len(settings), "log_likelihood": [-math.inf] * len(settings)}
    found: dict[str, dict[int, float]] = {"rmse": {}, "log_likelihood": {}}
    for rate in rates:
        numbers = [number for number, setting in enumerate(settings) if setting.lr == rate]
        own, own_seeds = [settings[number] for number in numbers], [seeds[number] for number in numbers]
        for name, values in _attempted(own, data.taken(numbers), dataset, own_seeds, device).items():
            found[name].update(zip(numbers, values, strict=True))
    return {name: [values[number] for number in range(len(settings))] for name, values in found.items()}


def _size(context: Context, dataset: str) -> dict[str, int]:
    settings = context.preset.settings
    return {name: settings[name] for name in ("splits", "epochs")} | settings["sizes"].get(dataset, {})


Measured = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""Scores split by split, by data set, point and metric."""


def _rows(method: str, found: Measured) -> list[Row]:
    rows = []
    for noise in dict.fromkeys(point_of(point)[1] for points in found.values() for point in points):
        means = {
            dataset: {
                point: (fmean(cell["log_likelihood"]), fmean(cell["rmse"]))
                for point, cell in points.items()
                if point_of(point)[1] == noise
            }
            for dataset, points in found.items()
        }
        for_all = best_for_all(means)
        for dataset, points in means.items():
            highest = max(density for density, _ in points.values())
            for point in (p for p, (density, _) in points.items() if density >= highest - TIE or p == for_all):
                marks = {"chosen": point == best(points), "chosen_for_all": point == for_all}
                rows += _point_rows(dataset, method, point, found[dataset][point], marks)
    return rows


def _point_rows(
    dataset: str, method: str, point: str, cell: Mapping[str, Sequence[float]], marks: Mapping[str, bool]
) -> list[Row]:
    named = {"dataset": dataset, "method": method, "variant": point}
    rows = [Row.over(cell[name], metric=f"valid_{name}", **named) for name in ("log_likelihood", "rmse")]
    return rows + [
        Row(dataset, method, point, name, float(value), None, len(cell["rmse"])) for name, value in marks.items()
    ]


SEARCH = Experiment(
    id="nng/search",
    title="Noisy natural gradient: the search over λ, step size, prior and β on validation rows",
    presets={
        "smoke": Preset(
            ("yacht",), SEARCHED,
            {"splits": 2, "epochs": 2, "samples": 4, "deviations": {}, "sizes": {},
             "grid": {"kl_weight": [0.1, 1.0], "lr": [0.01], "prior_std": [1.0], "beta": [0.01],
                      "noise_prior": NOISES[:1]}},
            synthetic=True,
        ),
        "quick": Preset(
            ("yacht", "boston"), SEARCHED,
            {"splits": 2, "epochs": 100, "samples": 50, "deviations": {}, "sizes": {},
             "grid": {"kl_weight": [0.05, 0.2, 1.0], "lr": [0.01], "prior_std": [1.0], "beta": [0.001],
                      "noise_prior": NOISES[:1]}},
        ),
        "paper": Preset(
            (*QUICK_SETS, *LARGE_SETS), SEARCHED,
            {"splits": 5, "epochs": 1000, "samples": 100, "deviations": DEVIATIONS, "sizes": SIZES, "grid": GRID},
        ),
    },
    methods=(*METHODS, "noisy-kfac-exact"),
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(),
    published=Path(__file__).with_name("published") / "search.json",
    devices=("cuda", "cpu"),
)  # fmt: skip
"""Data sets that are not among these test the entry for every data set."""
