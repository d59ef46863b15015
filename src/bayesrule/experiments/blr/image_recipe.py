"""One training run on images as plain data, and the optimizer it trains with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from bayesrule.errors import InvalidArgument
from bayesrule.experiments.blr.image_networks import started
from bayesrule.likelihoods import Categorical
from bayesrule.optim import IVON, OGN, STE, VOGN, BayesBiNN, KTiedVON, PosteriorOptimizer
from bayesrule.priors import Normal

HOLDERS: dict[str, type[PosteriorOptimizer]] = {
    "ogn": OGN,
    "vogn": VOGN,
    "ivon": IVON,
    "ktied-von": KTiedVON,
    "bayesbinn": BayesBiNN,
    "ste": STE,
}
"""Methods whose optimizer holds what the network predicts with."""
ADAMW = ("adamw", "mc-dropout", "full-precision")
"""Methods that are Adam with decoupled weight decay on a network."""
PLAIN: dict[str, type[torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adafactor": torch.optim.Adafactor}
METHODS = (*HOLDERS, *PLAIN, *ADAMW)
CAPTURED = ("ogn", "vogn", "ivon", "ktied-von")
"""Methods whose draws and updates are recorded as CUDA graphs, where they run on a GPU."""
DROPOUT, PRIOR_STD = "dropout", "prior_std"


@dataclass(frozen=True)
class Recipe:
    """Everything a run depends on.

    Attributes:
        network: One of `NETWORKS`.
        dataset: What it is trained on.
        method: One of `METHODS`.
        epochs: Passes over the training data.
        options: Of the optimizer, by name, and ``dropout``, the network's. The learning rate falls to zero by a cosine.
        batch_size: Examples in a batch.
        flips: Whether images are mirrored at random.
        seed: Of everything random.
        train: Only the first so many training examples; 0 for all.
        synthetic: Made-up data with so many training examples; 0 for the real ones.
    """

    network: str
    dataset: str
    method: str
    epochs: int
    options: tuple[tuple[str, float], ...] = ()
    batch_size: int = 250
    flips: bool = False
    seed: int = 0
    train: int = 0
    synthetic: int = 0

    def plain(self) -> Mapping[str, Any]:
        """What the trained model is recognised by."""
        return {"experiment": "blr", **asdict(self)}

    def told(self) -> str:
        """What was chosen, in words."""
        return ", ".join(f"{name} {value:g}" for name, value in self.options)

    def start(self) -> nn.Module:
        """The network before training."""
        return started(self.network, dict(self.options).get(DROPOUT, 0.0), self.seed)

    def optimizer(self, net: nn.Module, n_data: int) -> torch.optim.Optimizer:
        """Made new, for a network."""
        options: dict[str, Any] = {name: value for name, value in self.options if name != DROPOUT}
        if self.method in PLAIN:
            return PLAIN[self.method](net.parameters(), **options)
        if self.method in ADAMW:
            return torch.optim.AdamW(net.parameters(), **{"weight_decay": 0.0, **options})
        if self.method not in HOLDERS:
            raise InvalidArgument("There is no such method here", got=self.method, remedy=f"Known: {METHODS}.")
        if PRIOR_STD in options:
            options["prior"] = Normal(options.pop(PRIOR_STD))
        if self.method in CAPTURED:
            options["capturable"] = all(parameter.is_cuda for parameter in net.parameters())
        return HOLDERS[self.method](net, n_data=n_data, likelihood=Categorical(), seed=self.seed, **options)
