"""The search over prior, learning rate and annealing slope by validation data   [App. D.2 and D.4].

What it finds is written into `settings.json` by `with_choice`, and the other experiments use it from there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import measuring, settings
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.settings import THREE, presets
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row

RUN = "annealed"
METHODS = {"mean-field": "mean-field", "2-tied": "2-tied", "mean-field-unannealed": "mean-field"}
"""The posterior of each; that without annealing serves the runs that are analysed after convergence."""
METRICS = ("valid_nll", "valid_accuracy", "valid_negative_elbo", "chosen")


@dataclass(frozen=True)
class Point:
    """Of the grid."""

    prior_std: float
    lr: float
    slope: float | None

    def __str__(self) -> str:
        return f"prior {self.prior_std:g}, lr {self.lr:g}, slope {'none' if self.slope is None else f'{self.slope:g}'}"


def grid(context: Context, method: str) -> list[Point]:
    """All combinations."""
    ranges = context.preset.settings["search"]
    slopes = [None] if method == "mean-field-unannealed" else ranges["slope"]
    return [Point(*point) for point in product(ranges["prior_std"], ranges["lr"], slopes)]


def recipes(context: Context) -> Iterator[tuple[str, str, Point, Recipe]]:
    """Every run, by data set, method and point."""
    for dataset, method in product(context.datasets, context.methods):
        for point in grid(context, method):
            yield (
                dataset,
                method,
                point,
                settings.recipe(context, dataset, RUN, METHODS[method], context.seed, **vars(point)),
            )


def run(context: Context) -> list[Row]:
    """Validation scores of the ensemble of draws at every point; the chosen one has the lowest NLL."""
    found: dict[tuple[str, str], dict[Point, dict[str, float]]] = {}
    for dataset, method, point, recipe in recipes(context):
        found.setdefault((dataset, method), {})[point] = _measured(context, dataset, method, point, recipe)
    rows = []
    for (dataset, method), scores in found.items():
        best, _ = min(scores.items(), key=lambda each: each[1]["nll"])
        for point, cell in scores.items():
            values = {f"valid_{name}": (cell[name], cell.get(f"{name}_sem")) for name in measuring.SCORES}
            values["chosen"] = (float(point == best), None)
            rows += [Row(dataset, method, str(point), metric, *values[metric], 1) for metric in METRICS]
    return rows


def _measured(context: Context, dataset: str, method: str, point: Point, recipe: Recipe) -> dict[str, float]:
    return context.cell(
        dataset, method, str(point),
        compute=lambda: measuring.scored(context, train_recipe(context, recipe).bnn, recipe, valid=True),
    )  # fmt: skip


def with_choice(file: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The contents of `settings.json` with the chosen points, given the rows of a result, in its paper runs."""
    changed: dict[str, Any] = copy.deepcopy(dict(file))
    for row in rows:
        if row["metric"] != "chosen" or row["value"] != 1:
            continue
        runs, point = changed["paper"]["runs"][row["dataset"]], _point(row["variant"])
        if row["method"] == "mean-field-unannealed":
            runs["converged"]["recipe"] |= point
        else:
            runs[RUN]["tied" if row["method"] == "2-tied" else row["method"]] = point
    return changed


def _point(words: str) -> dict[str, float | None]:
    """A point from its words."""
    parts = dict(part.split(" ") for part in words.split(", "))
    slope = None if parts["slope"] == "none" else float(parts["slope"])
    return {"prior_std": float(parts["prior"]), "lr": float(parts["lr"]), "slope": slope}


SEARCH = Experiment(
    id="ktied/search",
    title="k-tied Normal, Appendix D: the search over prior, learning rate and slope",
    presets=presets(THREE, tuple(METHODS), [RUN], default_datasets=("mnist",), parts=["search"]),
    methods=tuple(METHODS),
    datasets=lambda data: THREE,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(),
    published=published("search"),
    devices=("cuda", "cpu"),
)
