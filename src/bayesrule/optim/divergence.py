"""``KL(q ‖ p)`` of what an optimizer holds."""

from __future__ import annotations

import math

from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.posteriors import BernoulliPosterior, GaussianPosterior, Posterior
from bayesrule.priors import DiagonalNormal, Normal, kl_divergence


def divergence(posterior: Posterior, prior: DiagonalNormal) -> Tensor:
    """Of a Gaussian from the prior; of binary weights from the uniform law, ``Σ log 2 − H(q)``   [BayesBiNN]."""
    if isinstance(posterior, GaussianPosterior):
        return kl_divergence(posterior, Normal(prior.precision.rsqrt(), prior.mean))
    if isinstance(posterior, BernoulliPosterior):
        return posterior.natural.numel() * math.log(2) - posterior.entropy()
    raise Unsupported(
        "Weights without a distribution have no KL", got=posterior.structure,
        remedy="Use BayesBiNN for a posterior over binary weights; STE minimises the loss alone.",
    )  # fmt: skip
