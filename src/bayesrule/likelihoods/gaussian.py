"""Gaussian noise whose standard deviation is fixed, or learned as a point."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.errors import ShapeMismatch
from bayesrule.likelihoods.base import PointLikelihood
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.normal_density import normal_log_prob
from bayesrule.likelihoods.positive import positive_tensor
from bayesrule.likelihoods.support import REALS
from bayesrule.random import NoiseSource


class Gaussian(PointLikelihood):
    """``y ~ N(f, σ²)``, independent over the entries of a target.

    Args:
        noise_std: The standard deviation σ: one number, or a tensor with one for each entry of the target.
        learn: Whether ``log σ`` is a parameter, starting from ``noise_std``.

    Example:
        >>> import torch
        >>> likelihood = Gaussian(noise_std=2.0)
        >>> round(likelihood.nll(torch.zeros(3, 1), torch.tensor([2.0, 0.0, -2.0])).item(), 4)
        1.9454
    """

    support = REALS
    argument_names = ("noise_std", "learn")
    log_noise_std: Tensor

    def __init__(self, noise_std: float | Tensor = 1.0, *, learn: bool = False) -> None:
        super().__init__()
        log_std = positive_tensor("noise_std", noise_std, max_ndim=1).log()
        if learn:
            self.log_noise_std = nn.Parameter(log_std)
        else:
            self.register_buffer("log_noise_std", log_std)

    @property
    def learn(self) -> bool:
        """Whether σ is learned."""
        return isinstance(self.log_noise_std, nn.Parameter)

    @property
    def noise_std(self) -> Tensor:
        """The standard deviation σ as it now is."""
        return self.log_noise_std.exp()

    def _log_prob(
        self, outputs: Float[Tensor, "*leading target"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``Σ_j log N(y_j; f_j, σ_j²)``."""
        return normal_log_prob(targets - outputs, self._log_std_for(outputs))

    def _sample(
        self, outputs: Float[Tensor, "*leading target"], noise: NoiseSource
    ) -> Float[Tensor, "*leading target"]:
        """``f + σ ε``."""
        return outputs + self._log_std_for(outputs).exp() * noise(tuple(outputs.shape), "normal", outputs)

    def _moments(self, outputs: Float[Tensor, "*leading target"]) -> Moments:
        """``f`` and ``σ²``."""
        return Moments(outputs, (2 * self._log_std_for(outputs)).exp().expand_as(outputs))

    def _log_std_for(self, outputs: Tensor) -> Tensor:
        if self.log_noise_std.ndim == 1 and self.log_noise_std.shape[0] != outputs.shape[-1]:
            raise ShapeMismatch(
                "noise_std has one entry for each entry of the target",
                got=f"{self.log_noise_std.shape[0]} standard deviations, outputs of shape {tuple(outputs.shape)}",
                remedy="Give noise_std as one number, or as a tensor of that many.",
            )
        return self.log_noise_std.to(outputs.dtype)

    def extra_repr(self) -> str:
        """The noise, and whether it is learned."""
        return f"noise_std={self.noise_std.tolist()}, learn={self.learn}"
