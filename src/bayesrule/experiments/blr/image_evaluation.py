"""What is measured of a trained method: how good, how calibrated, and how unsure of images from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule import metrics
from bayesrule.data import LabelledSet
from bayesrule.experiments.blr.image_data import Images
from bayesrule.experiments.blr.image_recipe import Recipe
from bayesrule.experiments.blr.image_search import BASE
from bayesrule.experiments.blr.image_training import examples, train_recipe
from bayesrule.experiments.context import Context
from bayesrule.inference import MCDropout, laplace
from bayesrule.inference.laplace import Structure
from bayesrule.likelihoods import Categorical
from bayesrule.predict import predict

CHUNK = 2000
MEMBER = 1000
"""Between the seeds of an ensemble's members; the first is the single network of that seed."""
Predictor = Callable[[Tensor], Tensor]
"""From images to probabilities of classes."""


def members(recipe: Recipe, count: int) -> list[Recipe]:
    """The networks of an ensemble."""
    return [replace(recipe, seed=recipe.seed + MEMBER * number) for number in range(count)]


def predictor(context: Context, method: str, recipe: Recipe) -> Predictor:
    """How a method predicts, with the network that a recipe trains."""
    settings = context.preset.settings[recipe.dataset]
    if method == "ensemble":
        return _averaged([predictor(context, recipe.method, one) for one in members(recipe, settings["members"])])
    held = train_recipe(context, recipe).bnn
    net, holder = held.net.eval(), held.holder()
    if method == "laplace":
        data = examples(recipe, context.data, context.device).labelled
        return _laplace(net, data, settings["laplace"], settings["prior_stds"], settings["draws"], recipe.seed)
    if method == "mc-dropout":
        return _drawn(MCDropout(net, Categorical(), seed=recipe.seed), settings["draws"], recipe.seed)
    if holder is None or method == "ste":
        return network_probs(net)
    return _drawn(holder, settings["draws"], recipe.seed)


def _laplace(
    net: nn.Module, data: LabelledSet, structure: Structure, prior_stds: Sequence[float], draws: int, seed: int
) -> Predictor:
    """The linearised network at draws, with the prior of the best validation NLL: that of most evidence is wider."""
    batches = zip(data.train_x.split(CHUNK), data.train_y.split(CHUNK), strict=True)
    fitted = laplace(net, batches, structure, likelihood=Categorical())

    def under(std: float) -> Predictor:
        precision = data.train_x.new_tensor(std**-2.0)
        groups = {name: replace(group, precision=precision) for name, group in fitted.groups.items()}
        return _drawn(replace(fitted, groups=groups).linearized(), draws, seed)

    found = [under(std) for std in prior_stds]
    return min(found, key=lambda one: float(metrics.categorical_nll(one(data.valid_x), data.valid_y)))


def network_probs(net: nn.Module) -> Predictor:
    """Of a network without draws, in parts."""

    @torch.no_grad()
    def probs(x: Tensor) -> Tensor:
        return torch.cat([net(part).softmax(-1) for part in x.split(CHUNK)])

    return probs


def validation_nll(context: Context, method: str, recipe: Recipe) -> float:
    """What settings are chosen by: infinite for a run that stopped. Methods made of Adam's networks take its choice."""
    by = BASE.get(method, method)

    def compute() -> dict[str, float]:
        found = train_recipe(context, recipe)
        if found.record["stopped"]:
            return {"nll": math.inf}
        data = examples(recipe, context.data, context.device).labelled
        probs = predictor(context, by, recipe)(data.valid_x)
        return {
            "nll": float(metrics.categorical_nll(probs, data.valid_y)) if bool(probs.isfinite().all()) else math.inf
        }

    return context.cell(recipe.dataset, by, "choosing", recipe.told(), compute=compute)["nll"]


def scores(probs: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy in percent, NLL, and the expected calibration error with 15 bins."""
    return {
        "accuracy": 100 * float(metrics.accuracy(probs, y)),
        "nll": float(metrics.categorical_nll(probs, y)),
        "ece": float(metrics.expected_calibration_error(probs, y)),
    }


def detection(probs: Tensor, elsewhere: Tensor) -> float:
    """How well the predictions' entropy tells images from elsewhere."""
    return float(metrics.ood_auroc(_entropy(probs), _entropy(elsewhere)))


def scores_on_test(context: Context, method: str, recipe: Recipe) -> dict[str, float]:
    """On test images, and against images from elsewhere."""
    data: Images = examples(recipe, context.data, context.device)
    predicted = predictor(context, method, recipe)
    probs = predicted(data.labelled.test_x)
    return {**scores(probs, data.labelled.test_y), "ood_auroc": detection(probs, predicted(data.elsewhere))}


def _drawn(model: Any, draws: int, seed: int) -> Predictor:
    return lambda x: predict(model, x, draws, seed=seed).probs


def _averaged(predictors: Sequence[Predictor]) -> Predictor:
    return lambda x: torch.stack([each(x) for each in predictors]).mean(0)


def _entropy(probs: Tensor) -> Tensor:
    return torch.special.entr(probs.double()).sum(-1)
