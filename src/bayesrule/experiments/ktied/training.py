"""Training by a recipe, on the library's own loop; the trained model is shared by all experiments that ask for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.data import LabelledSet
from bayesrule.experiments.context import Context
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.labelled_data import ready_set
from bayesrule.experiments.trained import Trained, trained
from bayesrule.nn import BayesianModule, kl
from bayesrule.predict import predict
from bayesrule.report.numbers import plural
from bayesrule.train import Epoch, Loop, TensorBatches, fit
from bayesrule.train.fit import Fitted
from bayesrule.train.gradient_snr import GradientSNR
from bayesrule.train.loop import Callback, Watcher

PROBE_DRAWS = 8


def examples(recipe: Recipe, folder: Path | None, device: torch.device) -> LabelledSet:
    """The data of a recipe's model; the target of a review is one number, that of an image a class."""
    shape = recipe.shape
    found = ready_set(shape.dataset, folder, device, validation=shape.validation, synthetic=recipe.synthetic)
    return found.first(train=recipe.train) if recipe.train else found


def targets(recipe: Recipe, y: Tensor) -> Tensor:
    """As the likelihood wants them."""
    return y.float().unsqueeze(-1) if recipe.shape.dataset == "imdb" else y


def train_recipe(context: Context, recipe: Recipe) -> Trained[BayesianModule]:
    """The trained model of a recipe, and its record: curves, probes, signal-to-noise ratios."""

    def train(bnn: BayesianModule) -> dict[str, Any]:
        return _train(bnn, recipe, examples(recipe, context.data, context.device))

    epochs = plural(recipe.epochs, "epoch")
    told = f"{recipe.model} {recipe.posterior} seed {recipe.seed}: {epochs}, lr {recipe.lr:g}"
    return trained(recipe.plain(), recipe.build, train, context, told)


def _train(bnn: BayesianModule, recipe: Recipe, data: LabelledSet) -> dict[str, Any]:
    snr, stds = GradientSNR(recipe.snr_at), StdRecord()
    probe = Probe(recipe, data)
    watchers: list[Watcher] = [snr] if recipe.snr_at else []
    watchers += [probe] if recipe.probe_every else []
    fitted = _fit(bnn, recipe, data, recipe.epochs, [stds], watchers)
    return {
        "history": [epoch.plain() for epoch in fitted.history],
        "n_data": len(data.train_y),
        "probes": probe.found,
        "snr": snr.found,
        "mean_stds": stds.found,
        "seconds": fitted.history[-1].seconds,
    }


def _fit(
    bnn: BayesianModule,
    recipe: Recipe,
    data: LabelledSet,
    epochs: int,
    callbacks: Sequence[Callback] = (),
    watchers: Sequence[Watcher] = (),
) -> Fitted:
    """Train by a recipe for so many epochs."""
    batches = _batches(recipe, data)
    cap = [] if recipe.max_std is None else [StdCap(bnn, recipe.max_std)]
    return fit(
        bnn,
        batches,
        epochs=epochs,
        lr=recipe.lr,
        annealing=recipe.annealing(len(batches)),
        n_data=len(data.train_y),
        seed=recipe.seed,
        schedule="constant",
        capture=data.train_x.is_cuda,
        callbacks=callbacks,
        watchers=[*watchers, *cap],
    )


def _batches(recipe: Recipe, data: LabelledSet) -> TensorBatches:
    """Whole batches only: a captured step has one shape."""
    batch_size = min(recipe.shape.batch_size, len(data.train_y) // 2)
    return TensorBatches(data.train_x, targets(recipe, data.train_y), batch_size=batch_size, drop_last=True)


def epoch_seconds(context: Context, recipe: Recipe, epochs: int) -> list[float]:
    """Seconds a step took in each epoch of a short run, the first left out: it prepares and records."""
    data = examples(recipe, context.data, context.device)
    history = _fit(recipe.build().to(context.device), recipe, data, epochs).history
    steps = len(_batches(recipe, data))
    return [(after.seconds - before.seconds) / steps for before, after in pairwise(history)]


class Probe:
    """A watcher that measures the −ELBO per validation example, ``E_q[NLL] + KL/N``, every so many steps."""

    def __init__(self, recipe: Recipe, data: LabelledSet) -> None:
        self.recipe, self.data = recipe, data
        self.found: list[dict[str, float]] = []

    def __call__(self, loop: Loop) -> None:
        """After a step."""
        if loop.step % self.recipe.probe_every:
            return
        y = targets(self.recipe, self.data.valid_y)
        with torch.no_grad():
            outputs = predict(loop.bnn, self.data.valid_x, PROBE_DRAWS, seed=self.recipe.seed).outputs
            nll = loop.objective.likelihood.nll(outputs.flatten(0, 1), y.repeat(len(outputs), *[1] * (y.ndim - 1)))
            negative_elbo = nll + kl(loop.bnn) / loop.objective.n_data
        self.found.append({"step": loop.step, "negative_elbo": negative_elbo.item()})


class StdRecord:
    """A callback that keeps the mean standard deviation of every weight, epoch by epoch."""

    def __init__(self) -> None:
        self.found: dict[str, list[float]] = {}

    @torch.no_grad()
    def __call__(self, loop: Loop, epoch: Epoch) -> None:
        """After an epoch."""
        for name, posterior in loop.bnn.posteriors().items():
            if posterior.event_dim == 2:
                self.found.setdefault(name, []).append(posterior.stddev.mean().item())


class StdCap:
    """A watcher that holds free standard deviations below a bound, as a projection after each step."""

    def __init__(self, bnn: BayesianModule, bound: float) -> None:
        self.bound = math.log(bound)
        self.log_stds: list[Tensor] = [
            parameter
            for home in bnn.homes().values()
            for key, parameter in home.posterior.named_parameters()
            if key.rpartition(".")[2] == "log_std"
        ]

    @torch.no_grad()
    def __call__(self, loop: Loop) -> None:
        """After a step."""
        torch._foreach_clamp_max_(self.log_stds, self.bound)
