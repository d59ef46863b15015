"""Training by a recipe, on the library's own loop; the trained model is shared by all experiments that ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.data import LabelledSet
from bayesrule.experiments.context import Context
from bayesrule.experiments.labelled_data import ready_set
from bayesrule.experiments.mn.left import layers_left, pruned_mean, totals
from bayesrule.experiments.mn.recipe import Recipe
from bayesrule.experiments.trained import Trained, trained
from bayesrule.nn import BayesianModule
from bayesrule.train import Epoch, Loop, TensorBatches, fit

CURVE_POINTS = 25
EVALUATED_TOGETHER = 2000


def examples(recipe: Recipe, folder: Path | None, device: torch.device) -> LabelledSet:
    """The data of a recipe."""
    found = _scaled(recipe.dataset, folder, device, recipe.validation, recipe.synthetic)
    return found.first(train=recipe.train) if recipe.train else found


@lru_cache(maxsize=2)
def _scaled(name: str, folder: Path | None, device: torch.device, validation: int, synthetic: int) -> LabelledSet:
    """Grey images in [0, 1]: at a black pixel, −1 elsewhere, the noise of a weight then does no harm."""
    found = ready_set(name, folder, device, validation=validation, synthetic=synthetic)
    return found if name == "cifar-10" else found.map_x(lambda x: (x + 1) / 2)


def train_recipe(context: Context, recipe: Recipe) -> Trained[BayesianModule]:
    """The trained model of a recipe, and its record: the loop's history, and curves of what the figures show."""

    def train(bnn: BayesianModule) -> dict[str, Any]:
        return _train(bnn, recipe, examples(recipe, context.data, context.device))

    told = f"{recipe.network} {recipe.dataset} {recipe.method} {recipe.prior} seed {recipe.seed}: {recipe.told()}"
    return trained(recipe.plain(), recipe.build, train, context, told)


def _train(bnn: BayesianModule, recipe: Recipe, data: LabelledSet) -> dict[str, Any]:
    batch_size = min(recipe.batch_size, len(data.train_y) // 2)
    batches = TensorBatches(data.train_x, data.train_y, batch_size=batch_size, drop_last=True)
    curve = Curve(data, max(1, recipe.epochs // CURVE_POINTS))
    fitted = fit(
        bnn,
        Flipped(batches) if recipe.flips else batches,
        epochs=recipe.epochs,
        lr=recipe.lr,
        annealing=recipe.kl_weight(len(batches)),
        n_data=len(data.train_y),
        seed=recipe.seed,
        # Eigenvalues, which the exact determinant takes, cannot be part of a CUDA graph.
        capture=data.train_x.is_cuda and recipe.method != "mn-kronecker",
        callbacks=[curve],
    )
    return {
        "history": [epoch.plain() for epoch in fitted.history],
        "n_data": len(data.train_y),
        "curve": curve.found,
        "seconds": fitted.history[-1].seconds,
    }


class Flipped:
    """Batches of images, each mirrored with probability one half, on their own device.

    Args:
        batches: Of images and targets.
    """

    def __init__(self, batches: TensorBatches) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self.batches:
            mirrored = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
            yield torch.where(mirrored, x.flip(-1), x), y


class Curve:
    """A callback that follows accuracy and weights left, of the pruned network at its mean.

    Args:
        data: Whose test part, by which nothing is chosen, and validation part are looked at.
        every: Epochs between two points.
    """

    def __init__(self, data: LabelledSet, every: int) -> None:
        self.data, self.every = data, every
        self.found: list[dict[str, float]] = []

    @torch.no_grad()
    def __call__(self, loop: Loop, epoch: Epoch) -> None:
        """After an epoch."""
        if epoch.epoch % self.every and epoch.epoch != loop.epochs:
            return
        left, plain = totals(layers_left(loop.bnn)), pruned_mean(loop.bnn)
        self.found.append(
            {
                "epoch": epoch.epoch,
                "accuracy": accuracy(plain, self.data.test_x, self.data.test_y),
                "weights_left": left["weights_left"],
                "negative_elbo": epoch.nll + epoch.kl_per_example,
            }
        )
        if len(self.data.valid_y):
            self.found[-1]["valid_accuracy"] = accuracy(plain, self.data.valid_x, self.data.valid_y)


@torch.no_grad()
def accuracy(network: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> float:
    """In percent."""
    parts = zip(x.split(EVALUATED_TOGETHER), y.split(EVALUATED_TOGETHER), strict=True)
    right = sum(int((network(images).argmax(-1) == classes).sum()) for images, classes in parts)
    return 100 * right / len(y)
