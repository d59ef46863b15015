"""Counts, by log rates."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.likelihoods.base import PointLikelihood
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.support import COUNTS
from bayesrule.random import NoiseSource

_BISECTIONS = 24  # brackets of 40 + 20√λ counts: enough up to rates of 1e11, beyond which no float32 counts by ones


class Poisson(PointLikelihood):
    """``y_j ~ Poisson(λ_j)``, ``λ_j = exp f_j``, independent over the entries of a target."""

    support = COUNTS

    def _log_prob(
        self, outputs: Float[Tensor, "*leading target"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``Σ_j y_j f_j − exp f_j − log y_j!``."""
        return (targets * outputs - outputs.exp() - torch.lgamma(targets + 1)).sum(-1)

    def _sample(
        self, outputs: Float[Tensor, "*leading target"], noise: NoiseSource
    ) -> Float[Tensor, "*leading target"]:
        """The first count at which the distribution function exceeds a uniform number, by bisection.

        By inversion and not `torch.poisson`, so that the draw is a function of the noise and can be replayed.
        """
        rate = outputs.exp()
        uniform = noise(tuple(outputs.shape), "uniform", outputs)
        below = (rate - 10 * rate.sqrt() - 1).floor().clamp_min(-1)
        above = (rate + 10 * rate.sqrt() + 40).ceil()
        for _ in range(_BISECTIONS):
            middle = ((below + above) / 2).floor()
            # P(y ≤ k) = Q(k + 1, λ), the upper regularised incomplete gamma function; 0 at k = −1
            exceeds = torch.special.gammaincc(middle + 1, rate) > uniform
            above, below = torch.where(exceeds, middle, above), torch.where(exceeds, below, middle)
        return above

    def _moments(self, outputs: Float[Tensor, "*leading target"]) -> Moments:
        """``λ`` and ``λ``."""
        return Moments(outputs.exp(), outputs.exp())
