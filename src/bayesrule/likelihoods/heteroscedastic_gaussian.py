"""Gaussian noise whose standard deviation the network predicts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from bayesrule.likelihoods.base import PointLikelihood
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.normal_density import normal_log_prob
from bayesrule.likelihoods.positive import check_positive
from bayesrule.likelihoods.support import REALS
from bayesrule.random import NoiseSource


class HeteroscedasticGaussian(PointLikelihood):
    """``y ~ N(m, σ²)`` with outputs ``(m, r)``: first all means, then all raw scales, ``σ = min_std + softplus(r)``.

    Softplus, not exp, so that an outlying raw scale moves σ linearly; the floor keeps the density bounded where the
    network interpolates its targets. ``min_std`` is in the targets' units.
    """

    support = REALS
    argument_names = ("min_std",)
    outputs_per_target = 2

    def __init__(self, min_std: float = 1e-3) -> None:
        super().__init__()
        check_positive("min_std", min_std)
        self.min_std = min_std

    def _log_prob(
        self, outputs: Float[Tensor, "*leading outputs"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``Σ_j log N(y_j; m_j, σ_j²)``."""
        mean, std = self._split(outputs)
        return normal_log_prob(targets - mean, std.log())

    def _sample(
        self, outputs: Float[Tensor, "*leading outputs"], noise: NoiseSource
    ) -> Float[Tensor, "*leading target"]:
        """``m + σ ε``."""
        mean, std = self._split(outputs)
        return mean + std * noise(tuple(mean.shape), "normal", mean)

    def _moments(self, outputs: Float[Tensor, "*leading outputs"]) -> Moments:
        """``m`` and ``σ²``."""
        mean, std = self._split(outputs)
        return Moments(mean, std.square())

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw_scale = torch.tensor_split(outputs, 2, dim=-1)
        return mean, self.min_std + functional.softplus(raw_scale)

    def extra_repr(self) -> str:
        """The floor."""
        return f"min_std={self.min_std:g}"
