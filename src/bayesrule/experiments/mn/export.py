"""A group-sparse network on MNIST made really smaller: what the plain network it is exported to costs and is worth.

Beyond the paper, which counts weights. The speed is that of a dense network with fewer units, on one CPU thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from bayesrule.data import LabelledSet
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Verdict
from bayesrule.experiments.mn.claims import ahead, by_method
from bayesrule.experiments.mn.comparison import Task, over_seeds
from bayesrule.experiments.mn.evaluation import evaluate
from bayesrule.experiments.mn.left import pruned_mean
from bayesrule.experiments.mn.ordinary import train_ordinary
from bayesrule.experiments.mn.recipe import Recipe
from bayesrule.experiments.mn.settings import EXPORTED, QUICK_EXPORTED, TRIAL, presets
from bayesrule.experiments.mn.training import accuracy, examples, train_recipe
from bayesrule.experiments.rows import Row
from bayesrule.nn import BayesianModule, mean_module
from bayesrule.prune import Pruning, prune
from bayesrule.prune.measuring import seconds

TASK = Task("fc512", "mnist", "group")
METHODS = ("diag", "mn")
BATCH_SIZE = 256
"""Of the forward passes that are timed."""
FASTER, POINTS, SAME = 3.0, 0.5, 1e-6
"""What is claimed: so many times faster, fewer points of accuracy lost, outputs so close to the masked network's."""
METRICS = (
    "negative_elbo", "accuracy", "accuracy_mean", "accuracy_exported", "accuracy_ordinary", "points_lost",
    "points_below_ordinary", "weights_total", "weights_left", "weights_exported", "inputs_left", "hidden1_left",
    "hidden2_left", "bytes_before", "bytes_after", "multiply_adds_before", "multiply_adds_after", "latency_ms_before",
    "latency_ms_after", "speedup", "output_difference", "output_difference_float32", "seconds",
)  # fmt: skip


def run(context: Context) -> list[Row]:
    """Every method with every seed; each of these is a cell, and so is the ordinary network of a seed."""
    rows = []
    for method in context.methods:
        recipes = over_seeds(context, TASK, method)
        cells = [_measured(context, recipe) for recipe in recipes]
        variant = recipes[0].told()
        rows += [
            Row.over([cell[name] for cell in cells], dataset=TASK.dataset, method=method, variant=variant, metric=name)
            for name in METRICS
        ]
    return rows


def _measured(context: Context, recipe: Recipe) -> dict[str, float]:
    settings = context.preset.settings
    data = examples(recipe, context.data, context.device)

    def bayesian() -> dict[str, float]:
        found = train_recipe(context, recipe)
        whole = evaluate(found.bnn, data, settings["draws"], recipe.seed)
        smaller = exported(found.bnn.cpu(), data.test_x.cpu(), data.test_y.cpu(), settings["repeats"])
        return {**whole, **smaller, "seconds": found.record["seconds"]}

    found = context.cell(recipe.dataset, recipe.method, f"seed {recipe.seed}", compute=bayesian)
    plain = _ordinary(context, recipe, data)
    return {
        **found,
        "accuracy_ordinary": plain,
        "points_lost": max(found["accuracy"], found["accuracy_mean"]) - found["accuracy_exported"],
        "points_below_ordinary": plain - found["accuracy_exported"],
    }


def _ordinary(context: Context, recipe: Recipe, data: LabelledSet) -> float:
    """Accuracy of a network of the same shape and start without a posterior: the same for every method."""

    def compute() -> dict[str, float]:
        return {"accuracy": accuracy(train_ordinary(recipe, data), data.test_x, data.test_y)}

    return context.cell(recipe.dataset, "ordinary", f"seed {recipe.seed}", compute=compute)["accuracy"]


@torch.no_grad()
def exported(bnn: BayesianModule, x: Tensor, y: Tensor, repeats: int) -> dict[str, float]:
    """What the network at the mean and the exported one cost on a CPU, the latter's accuracy, and what is left."""
    batch = (x[:BATCH_SIZE],)
    small = prune(bnn, example=batch).eval()
    pruning = cast(Pruning, small.pruning)
    before, after = pruning.before, pruning.after
    slow, fast = seconds([mean_module(bnn).eval(), small], batch, repeats)
    first, second, _ = pruning.rows
    return {
        "accuracy_exported": accuracy(small, x, y),
        "weights_exported": after.weights,
        "inputs_left": first.shape_after[0],
        "hidden1_left": second.shape_after[0],
        "hidden2_left": second.shape_after[1],
        "bytes_before": before.bytes,
        "bytes_after": after.bytes,
        "multiply_adds_before": before.multiply_adds or 0.0,
        "multiply_adds_after": after.multiply_adds or 0.0,
        "latency_ms_before": 1e3 * slow,
        "latency_ms_after": 1e3 * fast,
        "speedup": slow / fast,
        "output_difference": exported_difference(deepcopy(bnn).double(), x.double()),
        "output_difference_float32": difference(small, pruned_mean(bnn), x),
    }


def exported_difference(bnn: BayesianModule, x: Tensor) -> float:
    """The largest one between the exported network and the mean network whose dropped weights are zero."""
    return difference(prune(bnn).eval(), pruned_mean(bnn), x)


@torch.no_grad()
def difference(first: nn.Module, second: nn.Module, x: Tensor) -> float:
    """The largest one between two networks' outputs."""
    return max(float((first(part) - second(part)).abs().max()) for part in x.split(BATCH_SIZE))


def _fast(rows: Sequence[Row]) -> Verdict:
    return _any_method(rows, "points_lost")


def _fast_beside_ordinary(rows: Sequence[Row]) -> Verdict:
    return _any_method(rows, "points_below_ordinary")


def _any_method(rows: Sequence[Row], loss: str) -> Verdict:
    """Whether one method alone is both fast enough and close enough."""
    speedup, lost = by_method(rows, "speedup"), by_method(rows, loss)
    held = any(speedup[method].value >= FASTER and lost[method].value < POINTS for method in speedup)
    told = [f"{method} {row.value:.3g} times at {lost[method].value:+.2f} points" for method, row in speedup.items()]
    return Verdict.of(held, ", ".join(told))


def _same(rows: Sequence[Row]) -> Verdict:
    found = by_method(rows, "output_difference")
    told = ", ".join(f"{method} {row.value:.1e}" for method, row in found.items())
    return Verdict.of(all(row.value <= SAME for row in found.values()), told)


EXPORT = Experiment(
    id="mn/export",
    title="A group-sparse network on MNIST, exported as a smaller dense one",
    presets=presets(
        TASK.dataset, METHODS, quick=QUICK_EXPORTED, paper=EXPORTED, smoke={**TRIAL, "repeats": 3}
    ),
    methods=METHODS,
    datasets=lambda folder: (TASK.dataset,),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        Claim(
            f"an exported network is at least {FASTER:g} times faster on one CPU thread at batch {BATCH_SIZE}, "
            f"with less than {POINTS:g} points of accuracy lost",
            _fast,
        ),
        Claim(
            f"the same, with less than {POINTS:g} points below an ordinary network of the full size",
            _fast_beside_ordinary,
        ),
        Claim(f"exported and masked network give the same outputs, to {SAME:g} in double precision", _same),
        *(ahead(metric) for metric in ("negative_elbo", "accuracy", "accuracy_exported", "weights_left", "speedup")),
    ),
    published=Path(__file__).with_name("figures.json"),
    devices=("cuda", "cpu"),
)  # fmt: skip
