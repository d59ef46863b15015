"""Normal priors of given scale: one for all, per layer, per entry, or centred on given weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.posteriors import Posterior
from bayesrule.priors.prior import DiagonalNormal, Prior, check_broadcast, check_positive_scale


@dataclass(frozen=True)
class Normal(Prior):
    """``N(mean, std²)``.

    Attributes:
        std: Standard deviation: a number, or a tensor that broadcasts to the weight's fan-in × fan-out view.
        mean: Its centre, likewise; pretrained weights, for example.
    """

    std: float | Tensor = 1.0
    mean: float | Tensor = 0.0

    def __post_init__(self) -> None:
        check_positive_scale("The standard deviation of a prior", self.std)

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """Itself."""
        std = check_broadcast("A prior's std", torch.as_tensor(self.std).to(posterior.mean), posterior.event_shape)
        mean = check_broadcast("A prior's mean", torch.as_tensor(self.mean).to(posterior.mean), posterior.event_shape)
        return DiagonalNormal(mean, std.square().reciprocal())
