"""The search over λ, step size, prior scale and β by validation rows, the same grid for every method.

All points of the grid and some splits of a data set are replicas of one program for each β. The best points of each
step size, the finalists, are measured again on all splits and for as many epochs as in the tables: a few short runs
cannot tell the best from the lucky, nor a step that is too small from one that would end better. So are the points that
lose least over all sets together: that one run in twenty ends in nothing shows only there, and such a point is not
chosen. What is found is written into `settings.json` by `keep_choices`, and the tables use it from there; test rows are
not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from bayesrule.errors import InvalidArgument
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment, Preset, PresetName
from bayesrule.experiments.nng.choices import (
    CHOSEN,
    DEEP_SEARCH,
    FOR_ALL,
    PLAIN_NOISE,
    SEARCHED_AS,
    WEAK_NOISE,
    WITHOUT,
    Means,
    Point,
    Scores,
    best,
    best_for_all,
    conventions,
    losses_of_all,
    point_of,
    words,
)
from bayesrule.experiments.nng.claims import stands_out
from bayesrule.experiments.nng.data import known_sets, tables
from bayesrule.experiments.nng.protocol import Setting, Stacked, as_cell, by_split, mark, scores, validation_split
from bayesrule.experiments.nng.regression import DEVIATIONS, METHODS, QUICK_SETS, T_INV, TWO_LAYERS
from bayesrule.experiments.nng.search_size import Size
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table

SCORES = ("log_likelihood", "rmse")
STAGES = ("valid", "final")
METRICS = (*(f"{stage}_{name}" for stage in STAGES for name in SCORES), CHOSEN, FOR_ALL)
"""``valid_``: of the search; ``final_``: of the finalists' second measurement, which a set's choice is made by."""
NOISES = [list(PLAIN_NOISE), list(WEAK_NOISE)]
GRID = {
    "kl_weight": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0], "lr": [0.003, 0.01, 0.03], "prior_std": [0.5, 1.0, 2.0],
    "beta": [0.0001, 0.001, 0.01], "noise_prior": NOISES,
}  # fmt: skip
SEARCHED = tuple(method for method in METHODS if method not in SEARCHED_AS)
LARGE_SETS = ("kin8nm", "naval", "protein")
SIZES = {
    "yacht": {"epochs": 500}, "concrete": {"epochs": 200}, "energy": {"epochs": 250},
    "kin8nm": {"splits": 2, "epochs": 100}, "naval": {"splits": 2, "epochs": 50},
    "protein": {"splits": 2, "epochs": 15},
}  # fmt: skip
"""Of the first stage, which picks finalists; the same for every method. Large sets make many steps in an epoch."""
SIZES_OF_FINALS = {name: {"splits": 10, "seeds": 1} for name in ("kin8nm", "protein")}
"""Scores of their splits, with many validation rows, differ little; as those of Naval do, but for runs that fail."""


def grid(context: Context, method: str) -> list[Point]:
    """All combinations."""
    ranges: Mapping[str, list[Any]] = context.preset.settings["grid"]
    names = [name for name in ranges if name not in WITHOUT.get(method, ())]
    return [dict(zip(names, each, strict=True)) for each in product(*(ranges[name] for name in names))]


def run(context: Context) -> list[Row]:
    """Validation scores of every set's finalists, and of the point that is chosen for all sets."""
    sets = tables(context)
    rows = []
    for method in context.methods:
        found = first_stage(context, sets, method)
        last = points_of_finals(context, method, found)
        finals = {table.name: measured(context, table, method, last[table.name], Size.of_finals(context, table.name))
                  for table in sets}  # fmt: skip
        rows += _rows(method, found, finals)
    return rows


Cells = Mapping[str, Mapping[str, Sequence[float]]]
"""Scores split by split, by point and metric."""


def first_stage(context: Context, sets: Sequence[Table], method: str) -> dict[str, Cells]:
    """All points of the grid, set by set."""
    points = grid(context, method)
    return {each.name: measured(context, each, method, points, Size.of_search(context, each.name)) for each in sets}


def points_of_finals(context: Context, method: str, found: Mapping[str, Cells]) -> dict[str, list[Point]]:
    """The finalists of every set, and on all of them the candidates for all sets, which are measured again."""
    finals, points = context.preset.settings["finals"], grid(context, method)
    shared = candidates_for_all(found, finals["for_all"])
    names = {dataset: finalists(cells, finals["points"]) | shared for dataset, cells in found.items()}
    return {dataset: [point for point in points if words(point) in names[dataset]] for dataset in found}


def finalists(found: Cells, count: int) -> set[str]:
    """So many points of each noise prior and step size, those with the highest log-likelihoods."""
    return _first_of_each(sorted(found, key=lambda point: -fmean(found[point]["log_likelihood"])), count)


def candidates_for_all(found: Mapping[str, Cells], count: int) -> set[str]:
    """So many points of each noise prior and step size, those that lose least to each set's best on average."""
    ranked = [point for noise in noises(found) for point in losses_of_all(_of_noise(found, noise))]
    return _first_of_each(ranked, count)


def _first_of_each(ranked: Sequence[str], count: int) -> set[str]:
    """Of each noise prior and step size: in a short run a small step is behind one that would end worse."""
    rivals: dict[tuple[float | None, tuple[float, float]], list[str]] = {}
    for name in ranked:
        point, noise = point_of(name)
        rivals.setdefault((point.get("lr"), noise), []).append(name)
    return {name for names in rivals.values() for name in names[:count]}


def noises(found: Mapping[str, Cells]) -> list[tuple[float, float]]:
    """The noise priors of the points."""
    return list(dict.fromkeys(point_of(point)[1] for points in found.values() for point in points))


def programs(points: Sequence[Point]) -> list[list[Point]]:
    """Points by β, which replicas of one program share."""
    rates = dict.fromkeys(point.get("beta") for point in points)
    return [[point for point in points if point.get("beta") == rate] for rate in rates]


def measured(context: Context, table: Table, method: str, points: Sequence[Point], size: Size) -> Cells:
    """Scores of some points, split by split. A cell is what one program trains."""
    found: dict[str, dict[str, list[float]]] = {}
    size = replace(size, splits=min(len(table.splits), size.splits))
    for own in programs(points):
        key = mark(own, conventions(method), size)
        cell = context.cell(table.name, method, key, compute=partial(_scores, context, table, method, own, size))
        for number, point in enumerate(own):
            part = slice(number * size.splits * size.seeds, (number + 1) * size.splits * size.seeds)
            found[words(point)] = {name: _over_seeds(by_split(cell, name)[part], size) for name in SCORES}
    return found


def _over_seeds(values: Sequence[float], size: Size) -> list[float]:
    return [fmean(values[split :: size.splits]) for split in range(size.splits)]


def _scores(context: Context, table: Table, method: str, points: Sequence[Point], size: Size) -> dict[str, float]:
    settings, count = context.preset.settings, size.splits * size.seeds
    base = Setting(method, samples=size.samples, T_inv=T_INV.get(method)).changed(conventions(method))
    changes = {"hidden": settings["hidden"], **settings["deviations"].get(table.name, {}), "epochs": size.epochs}
    base = base.changed(changes)
    data = Stacked.of([validation_split(table, number) for number in range(size.splits)])
    replicas = [base.changed(point) for point in points for _ in range(count)]
    seeds = [context.seed + number for _ in points for number in range(count)]
    return as_cell(_attempted(replicas, data.repeated(len(points) * size.seeds), table.name, seeds, context.device))


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


def _rows(method: str, found: Mapping[str, Cells], finals: Mapping[str, Cells]) -> list[Row]:
    rows = []
    for noise in noises(found):
        last = _of_noise(finals, noise)
        failed = {name: _failed(finals[name], points) for name, points in last.items()}
        for_all = best_for_all({name: _but(points, set().union(*failed.values())) for name, points in last.items()})
        for dataset, points in last.items():
            chosen = best(_but(points, failed[dataset]))
            for point in points:
                marks = {CHOSEN: point == chosen, FOR_ALL: point == for_all}
                stages = zip(STAGES, (found[dataset], finals[dataset]), strict=True)
                cells = {stage: each[point] for stage, each in stages if point in each}
                rows += _point_rows(dataset, method, point, cells, marks)
    return rows


def _failed(cells: Cells, points: Iterable[str]) -> set[str]:
    return {point for point in points if stands_out(max(cells[point]["rmse"]), fmean(cells[point]["rmse"]))}


def _but(points: Means, failed: set[str]) -> Means:
    """Those of which no run failed; all, if none is left."""
    return {point: means for point, means in points.items() if point not in failed} or points


def _of_noise(stage: Mapping[str, Cells], noise: tuple[float, float]) -> Scores:
    return {dataset: _means(points, noise) for dataset, points in stage.items()}


def _means(points: Cells, noise: tuple[float, float]) -> Means:
    """Log-likelihood and RMSE of the points with one noise prior."""
    return {
        point: (fmean(cell["log_likelihood"]), fmean(cell["rmse"]))
        for point, cell in points.items()
        if point_of(point)[1] == noise
    }


def _point_rows(dataset: str, method: str, point: str, cells: Cells, marks: Mapping[str, bool]) -> list[Row]:
    named = {"dataset": dataset, "method": method, "variant": point}
    rows = [
        Row.over(cell[name], metric=f"{stage}_{name}", **named) for stage, cell in cells.items() for name in SCORES
    ]  # fmt: skip
    return rows + [
        Row(dataset, method, point, name, float(value), None, len(cells["valid"]["rmse"]))
        for name, value in marks.items()
    ]


def _presets(hidden: Sequence[int] | None) -> dict[PresetName, Preset]:
    """For networks with these hidden layers; None for one layer of the paper's width."""
    smoke = {
        "splits": 2, "epochs": 2, "samples": 4, "deviations": {}, "sizes": {},
        "finals": {"points": 2, "for_all": 1, "splits": 3, "seeds": 2, "epochs": 2, "samples": 4, "sizes": {}},
        "grid": {"kl_weight": [0.1, 1.0], "lr": [0.01], "prior_std": [1.0], "beta": [0.01], "noise_prior": NOISES[:1]},
    }  # fmt: skip
    quick = {
        "splits": 2, "epochs": 100, "samples": 50, "deviations": {}, "sizes": {},
        "finals": {"points": 2, "for_all": 1, "splits": 5, "seeds": 1, "epochs": 100, "samples": 100, "sizes": {}},
        "grid": {"kl_weight": [0.05, 0.2, 1.0], "lr": [0.01], "prior_std": [1.0], "beta": [0.001],
                 "noise_prior": NOISES[:1]},
    }  # fmt: skip
    paper = {
        "splits": 3, "epochs": 300, "samples": 100, "deviations": DEVIATIONS, "sizes": SIZES, "grid": GRID,
        "finals": {"points": 3, "for_all": 2, "splits": 20, "seeds": 2, "epochs": 1000, "samples": 1000,
                   "sizes": SIZES_OF_FINALS},
    }  # fmt: skip
    own = {"hidden": None if hidden is None else list(hidden)}
    return {
        "smoke": Preset(("yacht",), SEARCHED, smoke | own, synthetic=True),
        "quick": Preset(("yacht", "boston"), SEARCHED, quick | own),
        "paper": Preset((*QUICK_SETS, *LARGE_SETS), SEARCHED, paper | own),
    }


def _search(name: str, told: str, hidden: Sequence[int] | None) -> Experiment:
    return Experiment(
        id=name,
        title=f"Noisy natural gradient: the search over λ, step size, prior and β on validation rows{told}",
        presets=_presets(hidden),
        methods=SEARCHED,
        datasets=known_sets,
        metrics=lambda dataset: METRICS,
        run=run,
        claims=(),
        published=Path(__file__).with_name("published") / "search.json",
        devices=("cuda", "cpu"),
    )


SEARCH = _search("nng/search", "", None)
DEEPER_SEARCH = _search(DEEP_SEARCH, ", two hidden layers", TWO_LAYERS)
"""Data sets that are not among a search's test the entry for every data set."""
