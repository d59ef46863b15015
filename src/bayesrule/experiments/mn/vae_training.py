"""Training auto-encoders: the KL annealed, stopped early by the validation bound   [Algorithm 3, Sec. 5.4]."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule import data
from bayesrule.data import UnlabelledSet
from bayesrule.experiments.context import Context
from bayesrule.experiments.mn.vae import VAE, latent, log_marginal
from bayesrule.experiments.trained import Trained, trained
from bayesrule.nn.annealing import Exponential
from bayesrule.random import keyed_generator
from bayesrule.report.numbers import plural
from bayesrule.train import Captured, TrainingDiverged

LR = 5e-4
EVALUATED_TOGETHER, DRAWS_TOGETHER = 500, 50


@dataclass(frozen=True)
class VAERecipe:
    """Everything a run depends on.

    Attributes:
        family: ``"diag"``, ``"mn"`` or ``"mv"``.
        size: |z|.
        epochs: At most so many passes over the training data.
        anneal_epochs: Over which the KL's weight grows exponentially to 1.
        patience: Epochs without a better validation bound, counted from the end of annealing, after which to stop.
        batch_size: Examples in a batch.
        seeds: Of the models, which are trained side by side.
        synthetic: Made-up data with so many training examples; 0 for the real ones.
        train: Only the first so many training examples; 0 for all.
    """

    family: str
    size: int
    epochs: int = 1000
    anneal_epochs: int = 300
    patience: int = 50
    batch_size: int = 100
    seeds: tuple[int, ...] = (0,)
    synthetic: int = 0
    train: int = 0

    def plain(self) -> Mapping[str, Any]:
        """What the trained model is recognised by."""
        return {"model": "vae", **asdict(self)}

    def build(self) -> VAE:
        """The untrained models."""
        return VAE(latent(self.family, self.size), self.seeds)


@lru_cache(maxsize=1)
def images(folder: Path | None, device: torch.device, synthetic: int) -> UnlabelledSet:
    """Statically binarized MNIST on a device, or a made-up stand-in."""
    if synthetic:
        return data.synthetic_binarized_mnist(synthetic, synthetic // 4, synthetic // 2).to(device)
    return data.binarized_mnist(folder).to(device)


def train_vae(context: Context, recipe: VAERecipe) -> Trained[VAE]:
    """The trained models of a recipe; the record has their validation bounds of every epoch."""

    def train(vae: VAE) -> dict[str, Any]:
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seeds[0])
            return _train(vae, recipe, images(context.data, context.device, recipe.synthetic))

    seeds = ", ".join(map(str, recipe.seeds))
    told = f"vae {recipe.family} |z| = {recipe.size}, seeds {seeds}: at most {plural(recipe.epochs, 'epoch')}"
    return trained(recipe.plain(), recipe.build, train, context, told)


def _train(vae: VAE, recipe: VAERecipe, found: UnlabelledSet) -> dict[str, Any]:
    started = time.perf_counter()
    train = found.train[: recipe.train or len(found.train)]
    batch_size = min(recipe.batch_size, len(train))
    weight = torch.zeros((), device=train.device)
    step, steps = _step(vae, train, weight), len(train) // batch_size
    annealing = Exponential(max(1, recipe.anneal_epochs * steps))
    best = BestOfEach(vae, recipe)
    while not best.settled:
        orders = torch.stack([torch.randperm(len(train), device=train.device) for _ in recipe.seeds])
        for number, rows in enumerate(orders.split(batch_size, dim=1)[:steps]):
            weight.fill_(annealing(best.epochs * steps + number))
            step(rows)
        best.after_epoch(elbo(vae, found.valid))
    best.restore()
    return {
        "valid_elbo": best.scores, "best_epoch": best.best_epoch, "epochs": best.stopped,
        "seconds": time.perf_counter() - started,
    }  # fmt: skip


class BestOfEach:
    """Early stopping, model by model: each keeps its best epoch, and counts no epoch after its patience ran out.

    Args:
        vae: The models.
        recipe: Says how long to go on.
    """

    def __init__(self, vae: VAE, recipe: VAERecipe) -> None:
        self.vae, self.recipe = vae, recipe
        self.scores: list[list[float]] = []
        self.best_epoch, self.stopped = [0] * vae.models, [0] * vae.models
        self.kept = {name: tensor.clone() for name, tensor in vae.state_dict().items()}

    @property
    def epochs(self) -> int:
        """Done so far."""
        return len(self.scores)

    @property
    def settled(self) -> bool:
        """Whether nothing can become better."""
        return self.epochs >= self.recipe.epochs or all(self.stopped)

    def after_epoch(self, scores: list[float]) -> None:
        """Take note of the models' validation bounds."""
        if not all(map(math.isfinite, scores)):
            raise TrainingDiverged("A validation bound is not finite", got=scores, remedy="Lower the learning rate.")
        self.scores.append(scores)
        for model, score in enumerate(scores):
            if self.stopped[model]:
                continue
            if score >= max(earlier[model] for earlier in self.scores):
                self.best_epoch[model] = self.epochs
                for name, tensor in self.vae.state_dict().items():
                    self.kept[name][model] = tensor[model]
            waited = self.epochs - max(self.best_epoch[model], self.recipe.anneal_epochs)
            if waited >= self.recipe.patience or self.epochs == self.recipe.epochs:
                self.stopped[model] = self.epochs

    def restore(self) -> None:
        """Put every model at its best epoch."""
        self.vae.load_state_dict(self.kept)


def _step(vae: VAE, train: Tensor, weight: Tensor) -> Callable[[Tensor], object]:
    """A step of Adam on the rows of a batch; on a CUDA device recorded as a graph."""
    on_gpu = train.is_cuda
    rate = torch.tensor(LR, device=train.device) if on_gpu else LR
    optimizer = torch.optim.Adam(vae.parameters(), lr=rate, capturable=on_gpu, fused=on_gpu)

    def step(rows: Tensor) -> tuple[Tensor, ...]:
        optimizer.zero_grad()
        log_likelihood, kl = vae.terms(train[rows].float())
        loss = (weight * kl - log_likelihood).mean(-1).sum()
        loss.backward()
        optimizer.step()
        return (loss.detach(),)

    return Captured(step, train.device) if on_gpu else step


@torch.no_grad()
def elbo(vae: VAE, x: Tensor, samples: int = 1) -> list[float]:
    """Each model's bound per image at full weight of the KL, its likelihood term at so many draws."""
    total = torch.zeros(vae.models, dtype=torch.float64, device=x.device)
    for part in x.split(10 * EVALUATED_TOGETHER):
        for _ in range(samples):
            log_likelihood, kl = vae.terms(_for_all(vae, part))
            total += (log_likelihood - kl).double().sum(-1)
    return (total / (samples * len(x))).tolist()


@torch.no_grad()
def log_likelihood(vae: VAE, x: Tensor, samples: int, seed: int) -> list[float]:
    """Each model's ``log p(x)`` per image by importance sampling with so many draws an image."""
    total = torch.zeros(vae.models, dtype=torch.float64, device=x.device)
    generator = keyed_generator(x.device, "importance", seed)
    for part in x.split(EVALUATED_TOGETHER):
        pixels = _for_all(vae, part)
        given = partial(vae.log_likelihood, pixels)
        found = log_marginal(vae.encode(pixels), given, samples, together=DRAWS_TOGETHER, generator=generator)
        total += found.double().sum(-1)
    return (total / len(x)).tolist()


def _for_all(vae: VAE, x: Tensor) -> Tensor:
    """The same images for every model."""
    return x.float().expand(vae.models, *x.shape)
