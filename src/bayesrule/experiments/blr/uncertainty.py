"""Uncertainty by optimizers that hold posteriors, beside Adam, Laplace, dropout and ensembles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrule.experiments.blr import image_settings
from bayesrule.experiments.blr.image_costs import COSTS, costs
from bayesrule.experiments.blr.image_data import ELSEWHERE, SHUFFLED
from bayesrule.experiments.blr.image_drawing import draw_methods
from bayesrule.experiments.blr.image_evaluation import scores_on_test, validation_nll
from bayesrule.experiments.blr.image_recipe import Recipe
from bayesrule.experiments.blr.image_search import BASE, candidates, over_seeds
from bayesrule.experiments.blr.image_training import examples
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Verdict
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = image_settings.UNCERTAINTY_METHODS
SCORES = ("accuracy", "nll", "ece", "ood_auroc")
DATASETS = ("mnist", "cifar-10")
BEHIND = 0.2
"""Points of accuracy that a method may lie behind Adam."""
STATE = 0.6
"""Of Adam's bytes, which the state of KTiedVON may take."""


def run(context: Context) -> list[Row]:
    """Every method with every seed is a cell; so are the costs of all methods on a data set."""
    return [row for dataset in context.datasets for row in _rows(context, dataset)]


def _rows(context: Context, dataset: str) -> list[Row]:
    rows = []
    found = examples(candidates(context, dataset, "adam")[0], context.data, context.device)
    if found.elsewhere_name == SHUFFLED:
        context.skipped.append(f"{ELSEWHERE[dataset]} on {dataset}: not at hand, {SHUFFLED} stand for it")
    for method in context.methods:
        recipes = over_seeds(context, dataset, method, validation_nll)
        cells = [measured(context, method, recipe) for recipe in recipes]
        variant = f"{recipes[0].told()}, {recipes[0].epochs} epochs"
        named = {"dataset": dataset, "method": method, "variant": variant}
        rows += [Row.over([cell[metric] for cell in cells], metric=metric, **named) for metric in SCORES]
        rows += [
            Row.over(values, metric=metric, **named) for metric, values in _costs(context, dataset, method).items()
        ]
    return rows


def measured(context: Context, method: str, recipe: Recipe) -> dict[str, float]:
    """The scores of one run on test images."""
    return context.cell(
        recipe.dataset, method, f"seed {recipe.seed}", compute=partial(scores_on_test, context, method, recipe)
    )


def _costs(context: Context, dataset: str, method: str) -> dict[str, list[float]]:
    """What a step costs: every setting of a method costs the same."""
    settings = context.preset.settings[dataset]
    names = dict.fromkeys(("adam", "adamw", *(BASE.get(each, each) for each in context.methods)))

    def compute() -> dict[str, float]:
        recipes = {name: candidates(context, dataset, name)[0] for name in names}
        data = examples(recipes["adam"], context.data, context.device).labelled
        found = costs(recipes, data, settings["rounds"], settings["members"])
        return {
            f"{name} {metric} {number}": value
            for name, own in found.items()
            for metric, values in own.items()
            for number, value in enumerate(values)
        }

    cell = context.cell(dataset, "costs", *names, compute=compute)
    return {metric: [value for key, value in cell.items() if key.startswith(f"{method} {metric} ")] for metric in COSTS}


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """A figure for each data set, a panel for each score."""
    return {
        dataset: draw_methods([row for row in rows if row.dataset == dataset], SCORES) for dataset in context.datasets
    }


def by_metric(rows: Sequence[Row], method: str, dataset: str = "mnist") -> dict[str, float]:
    """A method's numbers."""
    return {row.metric: row.value for row in rows if row.method == method and row.dataset == dataset}


def better_than(rival: str, method: str) -> Claim:
    """As accurate, and better in NLL and ECE."""

    def check(rows: Sequence[Row]) -> Verdict:
        ours, theirs = by_metric(rows, method), by_metric(rows, rival)
        if not ours or not theirs:
            return Verdict("not measured", f"needs {method} and {rival} on mnist")
        held = ours["accuracy"] >= theirs["accuracy"] - BEHIND and all(
            ours[name] < theirs[name] for name in ("nll", "ece")
        )
        detail = ", ".join(f"{name} {ours[name]:.4g} against {theirs[name]:.4g}" for name in ("accuracy", "nll", "ece"))
        return Verdict.of(held, detail)

    return Claim(
        f"{method} on MNIST: at most {BEHIND:g} points of accuracy behind {rival}, with better NLL and ECE", check
    )


def _small_state(rows: Sequence[Row]) -> Verdict:
    found = by_metric(rows, "ktied-von")
    if "state_ratio" not in found:
        return Verdict("not measured", "needs ktied-von on mnist")
    return Verdict.of(found["state_ratio"] <= STATE, f"{found['state_ratio']:.1%}")


UNCERTAINTY = Experiment(
    id="blr/uncertainty",
    title="Accuracy, calibration, detection and cost of posteriors held by optimizers, and of their rivals",
    presets=image_settings.UNCERTAINTY,
    methods=METHODS,
    datasets=lambda folder: DATASETS,
    metrics=lambda dataset: (*SCORES, *COSTS),
    run=run,
    claims=(
        *(better_than(rival, method) for rival in ("adam", "adamw") for method in ("vogn", "ivon", "ktied-von")),
        Claim(f"KTiedVON keeps at most {STATE:.0%} of Adam's bytes on the MNIST network", _small_state),
    ),
    published=Path(__file__).with_name("uncertainty.json"),
    devices=("cuda", "cpu"),
    figures=figures,
)
