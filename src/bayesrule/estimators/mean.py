"""Mean: no noise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.estimators.estimator import Estimator
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource


@dataclass(frozen=True)
class Mean(Estimator):
    """The layer at the posterior mean."""

    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """``op(x, mean)``."""
        return contraction(x, posterior.mean)
