"""Gaussian noise averaged over a Gamma precision: the Student-t density."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.likelihoods.base import PointLikelihood
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.positive import positive_tensor
from bayesrule.likelihoods.support import REALS
from bayesrule.random import NoiseSource


class StudentT(PointLikelihood):
    """``p(y | f) = ∫ N(y; f, I/τ) Gamma(τ; a, b) dτ``: multivariate t, 2a degrees of freedom, scale matrix (b/a) I.

    The entries of a target share τ, so they are uncorrelated but not independent. Given by the Gamma's shape and rate,
    because the t's own "scale" is no standard deviation. The variance is infinite for ``a ≤ 1``; for ``a ≤ ½`` not even
    the mean exists and `moments` gives the centre.

    Args:
        shape: ``a``.
        rate: ``b``.
    """

    support = REALS
    argument_names = ("shape", "rate")
    shape: Tensor
    rate: Tensor

    def __init__(self, shape: float | Tensor, rate: float | Tensor) -> None:
        super().__init__()
        self.register_buffer("shape", positive_tensor("shape", shape))
        self.register_buffer("rate", positive_tensor("rate", rate))

    def _log_prob(
        self, outputs: Float[Tensor, "*leading target"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``log Γ(a + d/2) − log Γ(a) − (d/2) log 2πb − (a + d/2) log(1 + Σr²/2b)``, ``r = y − f``."""
        a, b, half_d = self.shape.double(), self.rate.double(), outputs.shape[-1] / 2
        # float64, because log Γ of a large shape is a large number and only the difference matters
        log_normaliser = torch.lgamma(a + half_d) - torch.lgamma(a) - half_d * (2 * math.pi * b).log()
        tail = (self.shape + half_d) * ((targets - outputs).square().sum(-1) / (2 * self.rate)).log1p()
        return (log_normaliser - tail).to(outputs.dtype)

    def _sample(
        self, outputs: Float[Tensor, "*leading target"], noise: NoiseSource
    ) -> Float[Tensor, "*leading target"]:
        """Entry after entry, each t given the ones before it, by Bailey's polar method (1994).

        ``r_j = √s_j g_j`` with ``g_j = √(U^(−1/(a + j/2)) − 1) cos 2πV``, ``s_0 = 2b``, ``s_{j+1} = s_j (1 + g_j²)``.
        """
        shape = tuple(outputs.shape)
        radius, angle = 1 - noise(shape, "uniform", outputs), 2 * math.pi * noise(shape, "uniform", outputs)
        half_dof = self.shape + 0.5 * torch.arange(shape[-1], dtype=outputs.dtype, device=outputs.device)
        standard = torch.expm1(-radius.log() / half_dof).sqrt() * angle.cos()
        growth = (1 + standard.square()).cumprod(-1)
        before = torch.cat([torch.ones_like(growth[..., :1]), growth[..., :-1]], -1)
        return outputs + (2 * self.rate * before).sqrt() * standard

    def _moments(self, outputs: Float[Tensor, "*leading target"]) -> Moments:
        """``f`` and ``E[1/τ] = b/(a − 1)``."""
        variance = torch.where(self.shape > 1, self.rate / (self.shape - 1), math.inf)
        return Moments(outputs, variance.to(outputs.dtype).expand_as(outputs))

    def extra_repr(self) -> str:
        """The Gamma's parameters."""
        return f"shape={self.shape.item():g}, rate={self.rate.item():g}"
