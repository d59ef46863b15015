"""One training run of the paper as plain data; runs of equal recipes are one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn

from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Auto, Estimator, LocalReparam
from bayesrule.experiments.mn.networks import NETWORKS, he_start
from bayesrule.likelihoods import Categorical
from bayesrule.nn import BayesianModule, bayesianize
from bayesrule.nn.annealing import Annealing, Exponential, LinearOverEpochs
from bayesrule.posteriors import Diagonal, Family, MatrixNormal, MatrixNormalDiagonal
from bayesrule.priors import ARD, GroupARD, LearnedNormal, Prior
from bayesrule.report.numbers import plural

GROUP_ITERATIONS = 5
"""Alternations of τ and γ in a step: any number gives a valid bound, five the optimum to about one part in 10⁵."""

PRIORS: dict[str, Prior] = {
    "ard": ARD(),
    "group": GroupARD("both", iterations=GROUP_ITERATIONS),
    "row": GroupARD("row"),
    "column": GroupARD("column"),
    "channel": GroupARD("channel"),
    "one-variance": LearnedNormal("model"),
}
VALIDATION = 10_000
NOISE: dict[str, Estimator] = {"local": LocalReparam(), "auto": Auto()}
METHODS = ("diag", "mn", "mn-free", "mn-kronecker")
"""Mean-field, matrix normal, and matrix normal plus a diagonal: free (its KL a bound), or Kronecker (exact)."""


def family(method: str, init_std: float) -> Family:
    """The posterior family of a method."""
    if method == "diag":
        return Diagonal(init_std)
    if method == "mn":
        return MatrixNormal(init_std)
    if method in ("mn-free", "mn-kronecker"):
        return MatrixNormalDiagonal("free" if method == "mn-free" else "kronecker", init_std)
    raise InvalidArgument("There is no such posterior here", got=method, remedy=f"Known: {', '.join(METHODS)}.")


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on.

    Attributes:
        network: One of `NETWORKS`.
        dataset: What it is trained on.
        method: One of `METHODS`.
        prior: One of `PRIORS`.
        epochs: Passes over the training data.
        lr: Of Adam at the start; it falls to zero along a cosine.
        annealing: How the KL's weight grows to 1.
        anneal_share: Of the epochs, over which it does.
        flips: Whether images are mirrored at random.
        batch_size: Examples in a batch.
        init_std: Where the standard deviations start.
        validation: How many of the last training examples are set aside.
        seed: Of everything random.
        synthetic: Made-up data with so many training examples; 0 for the real ones.
        train: Only the first so many training examples; 0 for all.
        noise: One of `NOISE`: that of local reparameterisation, or what is cheapest, layer by layer.
    """

    network: str
    dataset: str
    method: str
    prior: str
    epochs: int
    lr: float = 1e-3
    annealing: Literal["linear", "exponential"] = "linear"
    anneal_share: float = 0.5
    flips: bool = False
    batch_size: int = 256
    init_std: float = 0.01
    validation: int = VALIDATION
    seed: int = 0
    synthetic: int = 0
    train: int = 0
    noise: str = "local"

    def plain(self) -> Mapping[str, Any]:
        """What the trained model is recognised by."""
        return asdict(self)

    def told(self) -> str:
        """How it is trained, in words."""
        return f"lr {self.lr:g}, {self.annealing} annealing, {plural(self.epochs, 'epoch')}"

    def kl_weight(self, batches_per_epoch: int) -> Annealing:
        """The KL's weight by step."""
        epochs = self.epochs * self.anneal_share
        if self.annealing == "linear":
            return LinearOverEpochs(epochs, batches_per_epoch)
        return Exponential(max(1, round(epochs * batches_per_epoch)))

    def start(self, generator: torch.Generator) -> nn.Module:
        """The plain network that training starts from."""
        return he_start(NETWORKS[self.network](), generator)

    def build(self) -> BayesianModule:
        """The untrained model. Biases are point estimates, as the paper's counts of weights leave them out."""
        generator = torch.Generator().manual_seed(self.seed)
        net = self.start(generator)
        posterior, prior = family(self.method, self.init_std), PRIORS[self.prior]
        return bayesianize(net, posterior, prior, NOISE[self.noise], Categorical(), bias="point", generator=generator)
