"""Independent yes-or-no targets, by logits."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from bayesrule.likelihoods.base import PointLikelihood
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.support import BITS
from bayesrule.random import NoiseSource


class Bernoulli(PointLikelihood):
    """``P(y_j = 1 | f) = sigmoid(f_j)``, independent over the entries of a target, which are 0 or 1 (or booleans)."""

    support = BITS

    def _log_prob(
        self, outputs: Float[Tensor, "*leading target"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``Σ_j log sigmoid((2y_j − 1) f_j)``: one term, so nothing cancels where the prediction is sure."""
        return functional.logsigmoid((2 * targets - 1) * outputs).sum(-1)

    def _sample(
        self, outputs: Float[Tensor, "*leading target"], noise: NoiseSource
    ) -> Float[Tensor, "*leading target"]:
        """1 where a uniform number is below the probability."""
        return (noise(tuple(outputs.shape), "uniform", outputs) < outputs.sigmoid()).to(outputs.dtype)

    def _moments(self, outputs: Float[Tensor, "*leading target"]) -> Moments:
        """``p`` and ``p(1 − p)``."""
        return Moments(outputs.sigmoid(), outputs.sigmoid() * (-outputs).sigmoid())
