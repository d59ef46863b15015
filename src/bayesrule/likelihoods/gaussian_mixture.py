"""A mixture of Gaussians whose weights, means and standard deviations the network predicts."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods.base import PointLikelihood
from bayesrule.likelihoods.categorical import Categorical
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.normal_density import normal_log_prob
from bayesrule.likelihoods.support import REALS
from bayesrule.random import NoiseSource


class GaussianMixture(PointLikelihood):
    """``y_j ~ Σ_k w_jk N(m_jk, s_jk²)``, independent over the entries of a target: a mixture density network's law.

    For a target of ``d`` numbers and ``K`` components the last dimension of the outputs is ``d·K`` means, then ``d·K``
    *log* standard deviations, then ``d·K`` logits of the weights; in each block the K numbers of one entry stand
    together. ``s = exp(log s)`` as it is: adding ``log c`` multiplies every standard deviation by ``c``, and a floor is
    the network's affair.

    Args:
        components: K.

    Example:
        >>> import torch
        >>> likelihood = GaussianMixture(components=2)
        >>> mean, variance = likelihood.moments(torch.tensor([-1.0, 3.0, 0.0, 0.0, 0.0, 0.0]))
        >>> mean.item(), variance.item()
        (1.0, 5.0)
    """

    support = REALS
    argument_names = ("components",)

    def __init__(self, components: int = 3) -> None:
        super().__init__()
        if components < 1:
            raise InvalidArgument("a mixture needs one or more components", got=components)
        self.components = components
        self.outputs_per_target = 3 * components

    def mixture(
        self, outputs: Float[Tensor, "*leading outputs"]
    ) -> tuple[
        Float[Tensor, "*leading target components"],
        Float[Tensor, "*leading target components"],
        Float[Tensor, "*leading target components"],
    ]:
        """``(log w, m, s)`` of every entry's components, the weights normalised."""
        means, log_stds, logits = self._split(self._lifted(outputs))
        return logits.log_softmax(-1), means, log_stds.exp()

    def _log_prob(
        self, outputs: Float[Tensor, "*leading outputs"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``Σ_j log Σ_k w_jk N(y_j; m_jk, s_jk²)``, by logsumexp."""
        means, log_stds, logits = self._split(outputs)
        residuals = targets.unsqueeze(-1) - means
        densities = normal_log_prob(residuals.unsqueeze(-1), log_stds.unsqueeze(-1))
        return (logits.log_softmax(-1) + densities).logsumexp(-1).sum(-1)

    def _sample(
        self, outputs: Float[Tensor, "*leading outputs"], noise: NoiseSource
    ) -> Float[Tensor, "*leading target"]:
        """``m_k + s_k ε``, the component ``k`` by a uniform number."""
        log_weights, means, stds = self.mixture(outputs)
        chosen: Int64[Tensor, "*leading target"] = Categorical()._sample(log_weights, noise)  # of one component too
        mean, std = (torch.gather(each, -1, chosen.unsqueeze(-1)).squeeze(-1) for each in (means, stds))
        return mean + std * noise(tuple(mean.shape), "normal", mean)

    def _moments(self, outputs: Float[Tensor, "*leading outputs"]) -> Moments:
        """``Σ_k w_k m_k`` and ``Σ_k w_k (s_k² + (m_k − mean)²)``."""
        log_weights, means, stds = self.mixture(outputs)
        weights = log_weights.exp()
        mean = (weights * means).sum(-1)
        return Moments(mean, (weights * (stds.square() + (means - mean.unsqueeze(-1)).square())).sum(-1))

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means, log standard deviations and logits, each (…, target, components)."""
        means, log_stds, logits = outputs.unflatten(-1, (3, -1, self.components)).unbind(-3)
        return means, log_stds, logits

    def extra_repr(self) -> str:
        """How many components."""
        return f"components={self.components}"
