"""One training run of the paper as plain data; runs of equal recipes are one run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Estimator, Flipout, LocalReparam, WeightSample
from bayesrule.experiments.ktied.models import MODELS, Model, he_means, normal_means
from bayesrule.likelihoods import Bernoulli, Categorical
from bayesrule.nn import BayesianModule, bayesianize
from bayesrule.nn.annealing import Annealing, Constant, LinearOverEpochs, LinearPerBatch
from bayesrule.posteriors import Diagonal, Family, KTied
from bayesrule.priors import HeNormal, Normal, Prior

ESTIMATORS: dict[str, Estimator] = {"weight": WeightSample(), "local": LocalReparam(), "flipout": Flipout()}
RESNET_INIT_STD, RESNET_MAX_STD = math.exp(-9.0), 0.2


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on.

    Attributes:
        model: One of `MODELS`.
        posterior: ``"mean-field"`` or ``"k-tied"`` with a number for k, as ``"2-tied"``.
        epochs: Passes over the training data.
        prior_std: Standard deviation of the normal prior.
        he_prior: Use the He-scaled prior instead.
        lr: Of Adam, constant.
        slope: The KL's weight grows by this a batch, in stairs of 100; None for full weight from the start.
        anneal_epochs: Or it grows linearly over so many epochs.
        init_std: Where the standard deviations start.
        estimator: How noise enters.
        max_std: The standard deviations are held below it.
        probe_every: Steps between measurements of the validation −ELBO; 0 for none.
        snr_at: Steps at which gradient signal-to-noise ratios are measured.
        seed: Of everything random.
        synthetic: Made-up data with so many training examples, and the small network; 0 for the real ones.
        train: Only the first so many training examples; 0 for all.
    """

    model: str
    posterior: str
    epochs: int
    prior_std: float = 0.2
    he_prior: bool = False
    lr: float = 1e-3
    slope: float | None = 5e-5
    anneal_epochs: int = 0
    init_std: float = 0.01
    estimator: Literal["weight", "local", "flipout"] = "weight"
    max_std: float | None = None
    probe_every: int = 0
    snr_at: tuple[int, ...] = ()
    seed: int = 0
    synthetic: int = 0
    train: int = 0

    @property
    def shape(self) -> Model:
        """The model's description."""
        return MODELS[self.model]

    def plain(self) -> Mapping[str, Any]:
        """What the trained model is recognised by."""
        return asdict(self)

    def annealing(self, batches_per_epoch: int) -> Annealing:
        """The KL's weight."""
        if self.anneal_epochs:
            return LinearOverEpochs(self.anneal_epochs, batches_per_epoch)
        return Constant() if self.slope is None else LinearPerBatch(self.slope)

    def family(self) -> Family:
        """The posterior family of the layers that may be tied."""
        if self.posterior == "mean-field":
            return Diagonal(self.init_std)
        rank, _, kind = self.posterior.partition("-")
        if kind != "tied" or not rank.isdigit():
            raise InvalidArgument("There is no such posterior here", got=self.posterior, remedy="mean-field or 2-tied.")
        return KTied(int(rank), self.init_std)

    def prior(self) -> Prior:
        """The prior of all weights."""
        return HeNormal() if self.he_prior else Normal(self.prior_std)

    def build(self) -> BayesianModule:
        """The untrained model."""
        generator = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            net = self.shape.small() if self.synthetic else self.shape.network()
        (normal_means if self.model == "resnet18" else he_means)(net, generator=generator)
        return bayesianize(
            net,
            self.shape.posterior(self.family()),
            self.prior(),
            ESTIMATORS[self.estimator],
            Bernoulli() if self.shape.dataset == "imdb" else Categorical(),
            bias=self.shape.bias,
            generator=generator,
        )


def resnet_recipe(posterior: str, epochs: int, **changes: Any) -> Recipe:
    """The settings of TensorFlow Probability's CIFAR-10 example   [App. D.2]."""
    settings: dict[str, Any] = {
        "prior_std": 1.0, "lr": 1e-4, "slope": None, "anneal_epochs": 50, "init_std": RESNET_INIT_STD,
        "estimator": "flipout", "max_std": RESNET_MAX_STD,
    }  # fmt: skip
    return Recipe("resnet18", posterior, epochs, **settings | changes)
