"""Figure 3 of the appendix and its Section C: standard deviations over the course of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import settings
from bayesrule.experiments.ktied.claims import at_least, claim
from bayesrule.experiments.ktied.drawing import draw_curves
from bayesrule.experiments.ktied.low_rank import LAYERS
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.resnet_ranks import SHOWN
from bayesrule.experiments.ktied.settings import THREE, presets
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("cifar-10", *THREE)
METRICS = ("std_end", "std_over_prior_mean", "std_over_prior_min", "change_after_annealing")


def run_of(dataset: str) -> str:
    """The kind of run that is looked at."""
    return "trained" if dataset == "cifar-10" else "converged"


def run(context: Context) -> list[Row]:
    """Mean posterior standard deviations of the analysed weights, at the end and beside the prior's; over seeds."""
    rows = []
    for dataset in context.datasets:
        cells = [_measured(context, dataset, seed) for seed in settings.seeds(context, dataset, run_of(dataset))]
        rows += [
            Row.over([cell[metric] for cell in cells], dataset=dataset, method="mean-field", variant="", metric=metric)
            for metric in METRICS
        ]
    return rows


def _measured(context: Context, dataset: str, seed: int) -> dict[str, float]:
    def compute() -> dict[str, float]:
        recipe = settings.recipe(context, dataset, run_of(dataset), "mean-field", seed)
        return summary(_stds(context, recipe, dataset), recipe)

    return context.cell(dataset, "stds", seed, compute=compute)


def _stds(context: Context, recipe: Recipe, dataset: str) -> dict[str, list[float]]:
    record = train_recipe(context, recipe).record["mean_stds"]
    return {layer: record[weight] for layer, weight in LAYERS[dataset].items()}


def summary(stds: Mapping[str, Sequence[float]], recipe: Recipe) -> dict[str, float]:
    """Over weights; the change is the factor by which the mean grew since the KL had its full weight."""
    last = [values[-1] for values in stds.values()]
    annealed = [
        values[min(recipe.anneal_epochs, len(values)) - 1 if recipe.anneal_epochs else 0] for values in stds.values()
    ]
    return {
        "std_end": fmean(last),
        "std_over_prior_mean": fmean(last) / recipe.prior_std,
        "std_over_prior_min": min(last) / recipe.prior_std,
        "change_after_annealing": fmean(last) / fmean(annealed),
    }


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """The mean standard deviation of each layer, epoch by epoch; of the first seed."""
    found = {}
    for dataset in context.datasets:
        seed = settings.seeds(context, dataset, run_of(dataset))[0]
        recipe = settings.recipe(context, dataset, run_of(dataset), "mean-field", seed)
        found[dataset] = {
            layer: [{float(epoch): value for epoch, value in enumerate(values, start=1)}]
            for layer, values in _stds(context, recipe, dataset).items()
            if dataset != "cifar-10" or layer in SHOWN
        }
    return {"stds": draw_curves(found, x="epoch", y="mean standard deviation", logarithmic=True)}


APPENDIX_FIGURE3 = Experiment(
    id="ktied/appendix-figure3",
    title="k-tied Normal, Appendix Figure 3 and Section C: standard deviations during training",
    presets=presets(SETS, ("mean-field",), ["trained", "converged"]),
    methods=("mean-field",),
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        claim(
            "cifar-10: standard deviations still grow, by more than a tenth, after the KL has its full weight",
            [("cifar-10", "mean-field", "change_after_annealing")], at_least(1.1),
        ),
        *(
            claim(
                f"{dataset}: the standard deviations of every weight are on average above half the prior's",
                [(dataset, "mean-field", "std_over_prior_min")], at_least(0.5),
            )
            for dataset in THREE
        ),
    ),
    published=published("appendix_figure3"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip
