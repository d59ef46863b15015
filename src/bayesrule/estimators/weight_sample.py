"""Weight sampling: draw the weight, then run the layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.estimators.estimator import Estimator
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource


@dataclass(frozen=True)
class WeightSample(Estimator):
    """One draw shared by the batch: exact for every posterior and layer, at m·n normals a call."""

    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """``op(x, W)``, ``W`` from noise."""
        drawn = posterior.from_noise(noise(tuple(posterior.noise_shape), posterior.noise_law, posterior.mean))
        return contraction(x, drawn)
