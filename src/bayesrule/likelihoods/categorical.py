"""One class out of several, by logits."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from bayesrule.likelihoods.base import PointLikelihood
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.support import CLASSES
from bayesrule.random import NoiseSource


class Categorical(PointLikelihood):
    """``P(y = c | f) = softmax(f)_c``; the classes are the last dimension of the outputs, targets are class indices.

    Moments are those of the one-hot target: probabilities, and ``p(1 − p)``.

    Example:
        >>> import torch
        >>> Categorical().nll(torch.zeros(2, 4), torch.tensor([0, 3])).exp().item()
        4.0
    """

    support = CLASSES

    def _log_prob(
        self, outputs: Float[Tensor, "*leading classes"], targets: Int64[Tensor, "*examples"]
    ) -> Float[Tensor, "*leading"]:
        """``f_y − log Σ_c exp f_c``."""
        index = targets.expand(outputs.shape[:-1]).unsqueeze(-1)
        return outputs.log_softmax(-1).gather(-1, index).squeeze(-1)

    def _sample(self, outputs: Float[Tensor, "*leading classes"], noise: NoiseSource) -> Int64[Tensor, "*leading"]:
        """The class at which the cumulated probabilities first exceed a uniform number."""
        cumulated = outputs.softmax(-1).cumsum(-1)
        uniform = noise(tuple(outputs.shape[:-1]), "uniform", outputs).unsqueeze(-1)
        # Scaled by the last sum, which rounding leaves beside 1; the clamp is for a product rounded up to it.
        below = cumulated <= uniform * cumulated[..., -1:]
        return below.sum(-1).clamp_max(outputs.shape[-1] - 1)

    def _moments(self, outputs: Float[Tensor, "*leading classes"]) -> Moments:
        """``p`` and ``p(1 − p)``."""
        probs = outputs.softmax(-1)
        return Moments(probs, probs * (1 - probs))
