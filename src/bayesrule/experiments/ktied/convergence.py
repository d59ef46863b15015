"""What is recorded while a model trains without annealing: −ELBO on validation data, signal-to-noise ratios."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bayesrule.experiments.context import Context
from bayesrule.experiments.ktied import settings
from bayesrule.experiments.ktied.low_rank import LAYERS
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.settings import SNR_LABELS
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row

RUN = "curve"
DENSE_2 = LAYERS["mnist"]["dense_2"]
SNR_KINDS = ("mean", "median", "ratio_of_sums", "usual_median")


def measured(context: Context, recipe: Recipe) -> dict[str, float]:
    """Of one run: ``step …`` the −ELBO, ``snr_…`` the ratios of layer Dense 2 (if measured), ``seconds``."""

    def compute() -> dict[str, float]:
        return from_record(train_recipe(context, recipe).record, recipe)

    return context.cell(recipe.shape.dataset, "curve", recipe.posterior, recipe.estimator, recipe.seed, compute=compute)


def from_record(record: Mapping[str, Any], recipe: Recipe) -> dict[str, float]:
    """The numbers of a record under their names in a result."""
    found = {f"step {probe['step']}": probe["negative_elbo"] for probe in record["probes"]}
    for label, step in zip(SNR_LABELS, recipe.snr_at, strict=False):
        ratios = record["snr"][str(step)][DENSE_2]
        found |= {f"snr_{kind}_{label}": ratios[kind] for kind in SNR_KINDS}
        found[f"negative_elbo_{label}"] = found[f"step {step}"]
    return found | {"seconds": record["seconds"]}


def curve(cell: Mapping[str, float]) -> dict[float, float]:
    """Step to −ELBO."""
    return {float(name.split()[1]): value for name, value in cell.items() if name.startswith("step ")}


def rows(context: Context, names: Callable[[str], bool]) -> list[Row]:
    """Those numbers of all runs whose names fit: mean and standard error over seeds   [Fig. 6, right]."""
    found = []
    for dataset in context.datasets:
        for method in context.methods:
            recipes = [
                settings.recipe(context, dataset, RUN, method, seed) for seed in settings.seeds(context, dataset, RUN)
            ]
            cells = [measured(context, recipe) for recipe in recipes]
            found += [
                Row.over([cell[name] for cell in cells], dataset=dataset, method=method,
                         variant=settings.stated(recipes[0]), metric=name)
                for name in cells[0] if names(name)
            ]  # fmt: skip
    return found


def curves(context: Context, dataset: str, run: str = RUN) -> dict[str, list[dict[float, float]]]:
    """The −ELBO curves of all seeds, by method."""
    return {
        method: [
            curve(measured(context, settings.recipe(context, dataset, run, method, seed)))
            for seed in settings.seeds(context, dataset, run)
        ]
        for method in context.methods
    }
