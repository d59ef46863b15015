"""Gaussian noise of unknown precision, with a Gamma prior and its conjugate Gamma posterior."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods.base import Likelihood
from bayesrule.likelihoods.gamma import GammaPrecision
from bayesrule.likelihoods.moments import Moments
from bayesrule.likelihoods.normal_density import normal_log_prob
from bayesrule.likelihoods.positive import positive_tensor
from bayesrule.likelihoods.student_t import StudentT
from bayesrule.likelihoods.support import REALS, readable_values
from bayesrule.random import NoiseSource


class GaussianGammaNoise(Likelihood):
    """``y ~ N(f, 1/τ)`` with ``τ ~ Gamma(a₀, b₀)`` and the posterior ``q(τ) = Gamma(a, b)``, one τ for all entries.

    The objective averages the log density over q(τ); prediction (`log_prob`, `sample`, `moments`) plugs in ``E[τ]``, as
    the regression experiments of noisy natural gradient do, and `student_t` gives the exact average of the density.
    After n residuals ``E[τ]`` is at most ``(a₀ + n/2)/b₀``, which bounds the log-likelihood of data with little noise;
    a weak prior such as ``Gamma(1, 0.01)`` lifts the bound.

    Args:
        prior_shape: ``a₀``.
        prior_rate: ``b₀``.
    """

    support = REALS
    argument_names = ("prior_shape", "prior_rate")
    prior_shape: Tensor
    prior_rate: Tensor
    posterior_shape: Tensor
    posterior_rate: Tensor

    def __init__(self, prior_shape: float | Tensor = 6.0, prior_rate: float | Tensor = 6.0) -> None:
        super().__init__()
        for name, value in (("shape", prior_shape), ("rate", prior_rate)):
            checked = positive_tensor(f"prior_{name}", value)
            self.register_buffer(f"prior_{name}", checked)
            self.register_buffer(f"posterior_{name}", checked.clone())

    @property
    def prior(self) -> GammaPrecision:
        """``p(τ)``."""
        return GammaPrecision(self.prior_shape, self.prior_rate)

    @property
    def posterior(self) -> GammaPrecision:
        """``q(τ)``, which starts at the prior."""
        return GammaPrecision(self.posterior_shape, self.posterior_rate)

    @property
    def noise_std(self) -> Tensor:
        """``E[τ]^(−½)``."""
        return self.posterior.mean.rsqrt()

    def student_t(self) -> StudentT:
        """The exact predictive ``∫ N(y; f, 1/τ) q(τ) dτ`` of the posterior as it now is, a likelihood of its own."""
        return StudentT(self.posterior_shape, self.posterior_rate)

    def squared_residuals(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``Σ_j (y_j − f_j)²`` of every example; shapes as in `log_prob`."""
        outputs, targets = self._prepare(outputs, targets)
        return (targets - outputs).square().sum(-1)

    @torch.no_grad()
    def update(self, expected_squares: Tensor | float, n_residuals: int, *, step_size: float = 1.0) -> None:
        """The exact conjugate step, from the prior: ``a = a₀ + n/2``, ``b = b₀ + ½ E_q(w)[Σ (y − f)²]``.

        It replaces the posterior and does not add to it. With a ``step_size`` ρ < 1 it is the natural-gradient step
        ``λ ← (1−ρ)λ + ρλ*``, for sums estimated from a minibatch; both coordinates are affine in (a, b).

        Args:
            expected_squares: ``E_q(w)[Σ (y − f)²]`` over the whole data set: draws averaged, examples and entries
                summed; see `squared_residuals`.
            n_residuals: How many residuals that sums: examples times entries of a target.
            step_size: ρ in (0, 1].
        """
        if n_residuals < 0 or not 0 < step_size <= 1:
            raise InvalidArgument(
                "an update needs n_residuals ≥ 0 and a step_size in (0, 1]",
                got=f"n_residuals={n_residuals}, step_size={step_size}",
            )
        squares = torch.as_tensor(expected_squares, dtype=self.posterior_rate.dtype, device=self.posterior_rate.device)
        values = readable_values(squares)
        if squares.ndim or (values is not None and not (values.isfinite() & (values >= 0))):
            raise InvalidArgument("expected_squares is one finite number, at least 0", got=expected_squares)
        conjugate = self.prior.given_squares(squares, n_residuals)
        self.posterior_shape.lerp_(conjugate.shape, step_size)
        self.posterior_rate.lerp_(conjugate.rate, step_size)

    def _log_prob(
        self, outputs: Float[Tensor, "*leading target"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``log N(y; f, 1/E[τ])``."""
        return normal_log_prob(targets - outputs, self.noise_std.log().to(outputs.dtype))

    def _expected_log_prob(
        self, outputs: Float[Tensor, "*leading target"], targets: Float[Tensor, "*examples target"]
    ) -> Float[Tensor, "*leading"]:
        """``Σ_j ½(E[log τ] − log 2π) − ½ E[τ] (y_j − f_j)²``."""
        mean, mean_log = (x.to(outputs.dtype) for x in (self.posterior.mean, self.posterior.mean_log))
        return 0.5 * (mean_log - math.log(2 * math.pi) - mean * (targets - outputs).square()).sum(-1)

    def _sample(
        self, outputs: Float[Tensor, "*leading target"], noise: NoiseSource
    ) -> Float[Tensor, "*leading target"]:
        """``f + E[τ]^(−½) ε``."""
        return outputs + self.noise_std.to(outputs.dtype) * noise(tuple(outputs.shape), "normal", outputs)

    def _moments(self, outputs: Float[Tensor, "*leading target"]) -> Moments:
        """``f`` and ``1/E[τ]``."""
        return Moments(outputs, self.posterior.mean.reciprocal().to(outputs.dtype).expand_as(outputs))

    def kl(self) -> Float[Tensor, ""]:
        """``KL(Gamma(a, b) ‖ Gamma(a₀, b₀))``."""
        return self.posterior.kl(self.prior).to(self.posterior_shape.dtype)

    def extra_repr(self) -> str:
        """Prior and posterior."""
        return ", ".join(f"{name}={buffer.item():g}" for name, buffer in self.named_buffers())
