"""He-scaled prior: variance inversely proportional to fan-in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bayesrule.posteriors import Posterior
from bayesrule.priors.normal import Normal
from bayesrule.priors.prior import DiagonalNormal, Prior, check_positive_scale


@dataclass(frozen=True)
class HeNormal(Prior):
    """``N(0, gain²/fan_in)`` for weights, ``N(0, bias_std²)`` for vectors   [k-tied Normal, App. D].

    Attributes:
        gain: √2 is He's, for rectified linear units.
        bias_std: Standard deviation for biases and other vectors.
    """

    gain: float = math.sqrt(2)
    bias_std: float = 1.0

    def __post_init__(self) -> None:
        check_positive_scale("gain", self.gain)
        check_positive_scale("bias_std", self.bias_std)

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """By the rows of the event."""
        std = self.bias_std if posterior.event_dim == 1 else self.gain / math.sqrt(posterior.event_shape[0])
        return Normal(std).given(posterior, hyperparameters)
