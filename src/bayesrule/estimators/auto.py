"""Auto: the cheaper of weight sampling and local reparameterization, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.estimators.estimator import Estimator
from bayesrule.estimators.local_reparam import LocalReparam
from bayesrule.estimators.weight_sample import WeightSample
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource


@dataclass(frozen=True)
class Auto(Estimator):
    """Local noise where it draws fewer normals than the weight has entries, weight sampling elsewhere.

    Weight sampling draws m·n normals, local noise one for each of the output rows × n; so wide dense layers take
    local noise, convolutions and large batches weight sampling. An embedding draws only the rows it uses, whole.
    """

    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """By the estimator chosen."""
        return self.choose(posterior, contraction, x).output(posterior, contraction, x, noise)

    def choose(self, posterior: Posterior, contraction: Contraction, x: Tensor) -> Estimator:
        """The cheaper estimator for this input; weight sampling where the posterior offers nothing else."""
        by_rows = posterior.independent and contraction.picks_rows
        cheaper = contraction.rows(x) < contraction.view.fan_in and not by_rows
        return LocalReparam() if cheaper and posterior.projects(contraction) else WeightSample()
