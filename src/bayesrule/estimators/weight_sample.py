"""Weight sampling: draw the weight, then run the layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.estimators.estimator import Estimator, drawn
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource, by_parts, in_graph


@dataclass(frozen=True)
class WeightSample(Estimator):
    """One draw shared by the batch: exact for every posterior and layer, at m·n normals a call.

    Where inputs pick rows of the weight and entries are independent, only the rows used are drawn.
    """

    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """``op(x, W)``, ``W`` from noise."""
        # A graph has fixed shapes, the number of distinct rows has not.
        partial = posterior.independent and not in_graph() and by_parts(noise)
        used = contraction.used_rows(x) if partial else None
        if used is None:
            return contraction(x, drawn(posterior, noise))
        rows, picks = used
        return drawn(posterior.select_rows(rows), noise)[..., picks, :]
