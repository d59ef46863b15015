"""The mixture of normals that draws under a Gaussian likelihood make of every entry of a target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.likelihoods import Gaussian, GaussianGammaNoise, GaussianMixture, HeteroscedasticGaussian, Likelihood


@dataclass(frozen=True)
class NormalMixture:
    """``Σ_c w_c N(m_c, s_c²)`` for every entry; the weights of all components sum to 1."""

    weights: Float[Tensor, components * entries]
    means: Float[Tensor, components * entries]
    stds: Float[Tensor, components * entries]

    def cdf(self, values: Float[Tensor, "*entries"]) -> Float[Tensor, "*entries"]:
        """``Σ_c w_c Φ((y − m_c)/s_c)``."""
        return (self.weights * torch.special.ndtr((values - self.means) / self.stds)).sum(0)


def as_normal_mixture(likelihood: Likelihood, outputs: Float[Tensor, "draws *leading outputs"]) -> NormalMixture | None:
    """The law of every entry given all draws, equally weighted; None where the likelihood is not made of normals."""
    if isinstance(likelihood, GaussianMixture):
        log_weights, means, stds = (each.movedim(-1, 0).flatten(0, 1) for each in likelihood.mixture(outputs))
        return NormalMixture(log_weights.exp() / len(outputs), means, stds)
    if isinstance(likelihood, Gaussian | GaussianGammaNoise | HeteroscedasticGaussian):
        means, variances = likelihood.moments(outputs)
        return NormalMixture(torch.full_like(means, 1 / len(outputs)), means, variances.sqrt())
    return None
