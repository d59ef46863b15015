"""Auto: the cheaper of weight sampling and local reparameterization, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.estimators.estimator import Estimator
from bayesrule.estimators.local_reparam import LocalReparam
from bayesrule.estimators.prices import prices_for
from bayesrule.estimators.weight_sample import WeightSample
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource


@dataclass(frozen=True)
class Auto(Estimator):
    """Local noise where a training step with it costs less than drawing the weight, weight sampling elsewhere.

    Weight sampling draws m·n normals, scales them and adds them to the mean; local noise draws one for each of the
    output rows × n, and takes the posterior's own products to find their scale: a second m·n for each row with a
    diagonal posterior, k(k+1)/2 · (m + n) with a k-tied one. So wide dense layers take local noise, convolutions and
    large batches weight sampling. An embedding draws only the rows it uses, whole. What the choice counts is
    `Posterior.draw_work` and `Posterior.projection_work`, at the prices of the device.
    """

    chooses = True

    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """By the estimator chosen."""
        return self.choose(posterior, contraction, x).output(posterior, contraction, x, noise)

    def choose(self, posterior: Posterior, contraction: Contraction, x: Tensor) -> Estimator:
        """The cheaper estimator for this input; weight sampling where the posterior offers nothing else."""
        by_rows = posterior.independent and contraction.picks_rows
        if by_rows or not posterior.projects(contraction):
            return WeightSample()
        prices = prices_for(x)
        local, drawn = posterior.projection_work(contraction, x), posterior.draw_work()
        return LocalReparam() if prices.of(local) + prices.node < prices.of(drawn) else WeightSample()
