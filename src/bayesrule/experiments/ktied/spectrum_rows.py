"""Explained variance per singular value of posterior means and standard deviations   [Section 2.3]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bayesrule.compress import spectra
from bayesrule.experiments.context import Context
from bayesrule.experiments.ktied import settings
from bayesrule.experiments.ktied.low_rank import LAYERS
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row

PARTS = ("means", "stds")
SHOWN = 20
"""Singular values kept for a figure."""


def metrics(dataset: str) -> tuple[str, ...]:
    """What the first, and the first two, singular values of each layer explain."""
    return tuple(f"{layer}_top{count}" for layer in LAYERS[dataset] for count in (1, 2))


def measured(context: Context, dataset: str, run: str, part: str, seed: int) -> dict[str, float]:
    """Of each layer the explained variance of the first singular values, each and (for two) together."""

    def compute() -> dict[str, float]:
        recipe = settings.recipe(context, dataset, run, "mean-field", seed)
        found = spectra(train_recipe(context, recipe).bnn)
        values: dict[str, float] = {}
        for layer, weight in LAYERS[dataset].items():
            explained = (found[weight].means if part == "means" else found[weight].stds).tolist()
            values |= {f"{layer}_top1": explained[0], f"{layer}_top2": sum(explained[:2])}
            values |= {f"{layer}_{number}": each for number, each in enumerate(explained[:SHOWN], start=1)}
        return values

    return context.cell(dataset, run, part, seed, compute=compute)


def rows(context: Context, run: str) -> list[Row]:
    """Means and standard errors over seeds."""
    found = []
    for dataset in context.datasets:
        for part in context.methods:
            cells = [measured(context, dataset, run, part, seed) for seed in settings.seeds(context, dataset, run)]
            found += [
                Row.over([cell[metric] for cell in cells], dataset=dataset, method=part, variant="", metric=metric)
                for metric in metrics(dataset)
            ]
    return found


def curves(
    context: Context, dataset: str, run: str, layers: Sequence[str] | None = None
) -> dict[str, dict[str, list[float]]]:
    """By layer and part the explained variance of the first singular values, of the first seed."""
    seed = settings.seeds(context, dataset, run)[0]
    cells = {part: measured(context, dataset, run, part, seed) for part in PARTS}
    chosen = LAYERS[dataset] if layers is None else layers
    return {layer: {part: _spectrum(cell, layer) for part, cell in cells.items()} for layer in chosen}


def _spectrum(cell: Mapping[str, float], layer: str) -> list[float]:
    names: Sequence[str] = [f"{layer}_{number}" for number in range(1, SHOWN + 1)]
    return [cell[name] for name in names if name in cell]
