"""Posterior families side by side on one network and one prior: tuned alike, over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, PresetName
from bayesrule.experiments.mn.curves import draw_curves
from bayesrule.experiments.mn.evaluation import METRICS, evaluate, layer_metrics, validation_score
from bayesrule.experiments.mn.recipe import VALIDATION, Recipe
from bayesrule.experiments.mn.training import examples, train_recipe
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHOOSING_DRAWS = 10
EARLY = ("epoch_early", "accuracy_pruned_early", "weights_left_early")
"""At the epoch with the best validation accuracy of the pruned network, while the KL's weight may still be below 1."""


@dataclass(frozen=True)
class Task:
    """What the families are compared on.

    Attributes:
        network: One of `NETWORKS`.
        dataset: What it is trained on.
        prior: One of `PRIORS`.
        flips: Whether images are mirrored at random.
        convolutions: How many of its layers get rows of their own.
        early: Whether the epoch that is best on validation images gets rows beside those of the end.
    """

    network: str
    dataset: str
    prior: str
    flips: bool = False
    convolutions: int = 0
    early: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """What each method yields."""
        return METRICS + layer_metrics(self.convolutions) + (EARLY if self.early else ())


def candidates(task: Task, method: str, settings: Mapping[str, Any], seed: int) -> list[Recipe]:
    """The recipes a method is tuned over, with the first seed."""
    return [
        Recipe(
            task.network, task.dataset, method, task.prior, settings.get("choosing_epochs", _epochs(method, settings)),
            lr, annealing, flips=task.flips, batch_size=settings["batch_size"], seed=seed,
            synthetic=settings.get("synthetic", 0), train=settings.get("train", 0),
            validation=settings.get("validation", VALIDATION), noise=settings.get("noise", "local"),
        )
        for lr, annealing in product(settings["lrs"], settings["annealings"])
    ]  # fmt: skip


def _epochs(method: str, settings: Mapping[str, Any]) -> int:
    return settings.get("epochs_of", {}).get(method, settings["epochs"])


def chosen(context: Context, task: Task, method: str) -> Recipe:
    """The candidate with the best −ELBO on validation data; a single one needs no training to be chosen."""
    found = candidates(task, method, context.preset.settings, context.seed)
    return found[0] if len(found) == 1 else min(found, key=partial(_score, context))


def _score(context: Context, recipe: Recipe) -> float:
    def compute() -> dict[str, float]:
        bnn = train_recipe(context, recipe).bnn
        data = examples(recipe, context.data, context.device)
        return {"score": validation_score(bnn, data, CHOOSING_DRAWS, recipe.seed)}

    key = (recipe.dataset, recipe.method, "choosing", f"{recipe.lr:g}", recipe.annealing)
    return context.cell(*key, compute=compute)["score"]


def over_seeds(context: Context, task: Task, method: str) -> list[Recipe]:
    """The chosen recipe with every seed, at full length; if the settings say so, on the validation images as well."""
    settings = context.preset.settings
    best = replace(chosen(context, task, method), epochs=_epochs(method, settings))
    if settings.get("train_on_all", False):
        best = replace(best, validation=0)
    return [replace(best, seed=context.seed + number) for number in range(settings["seeds"])]


def run(task: Task, context: Context) -> list[Row]:
    """Every method with every seed; each of these is a cell."""
    return [row for method in context.methods for row in _rows(context, task, method)]


def _rows(context: Context, task: Task, method: str) -> list[Row]:
    recipes = over_seeds(context, task, method)
    cells = [_measured(context, recipe) for recipe in recipes]
    place = {"dataset": task.dataset, "method": method, "variant": recipes[0].told()}
    return [Row.over([cell[metric] for cell in cells], **place, metric=metric) for metric in task.metrics]


def _measured(context: Context, recipe: Recipe) -> dict[str, float]:
    def compute() -> dict[str, float]:
        found = train_recipe(context, recipe)
        data = examples(recipe, context.data, context.device)
        measured = evaluate(found.bnn, data, context.preset.settings["draws"], recipe.seed)
        return {**measured, **_early(found.record["curve"]), "seconds": found.record["seconds"]}

    return context.cell(recipe.dataset, recipe.method, f"seed {recipe.seed}", compute=compute)


def _early(curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Nothing without validation images."""
    best = max(curve, key=lambda point: point.get("valid_accuracy", 0.0))
    values = (best["epoch"], best["accuracy"], best["weights_left"])
    return dict(zip(EARLY, values, strict=True)) if "valid_accuracy" in best else {}


def _figures(task: Task, name: str, context: Context, rows: Sequence[Row]) -> dict[str, Figure]:
    curves = {
        method: [train_recipe(context, recipe).record["curve"] for recipe in over_seeds(context, task, method)]
        for method in context.methods
    }
    return {name: draw_curves(curves)}


def comparison(
    name: str,
    title: str,
    task: Task,
    presets: Mapping[PresetName, Preset],
    claims: tuple[Claim, ...],
    published: str,
    *,
    curves: bool = True,
) -> Experiment:
    """The experiment of a task; its figure shows how bound, accuracy and weights left come about."""
    figures: Callable[[Context, Sequence[Row]], Mapping[str, Figure]] | None = (
        partial(_figures, task, name) if curves else None
    )
    methods = presets["paper"].methods
    return Experiment(
        id=f"mn/{name}",
        title=title,
        presets=presets,
        methods=methods,
        datasets=lambda folder: (task.dataset,),
        metrics=lambda dataset: task.metrics,
        run=partial(run, task),
        claims=claims,
        published=Path(__file__).with_name(published),
        devices=("cuda", "cpu"),
        figures=figures,
    )
