"""A Gamma distribution over a noise precision, as a value."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class GammaPrecision:
    """``τ ~ Gamma(shape a, rate b)``, density ``∝ τ^(a−1) e^(−bτ)``.

    Everything is computed in float64: after N examples the shape is about N/2, and float32 loses the first digit of
    differences of ``log Γ`` there.
    """

    shape: Float[Tensor, ""]
    rate: Float[Tensor, ""]

    @property
    def mean(self) -> Float[Tensor, ""]:
        """``E[τ] = a/b``."""
        return self.shape.double() / self.rate.double()

    @property
    def mean_log(self) -> Float[Tensor, ""]:
        """``E[log τ] = ψ(a) − log b``."""
        return torch.digamma(self.shape.double()) - self.rate.double().log()

    def kl(self, prior: GammaPrecision) -> Float[Tensor, ""]:
        """``(a−a₀)ψ(a) − log Γ(a) + log Γ(a₀) + a₀ log(b/b₀) + a(b₀−b)/b``."""
        a, b, a0, b0 = (x.double() for x in (self.shape, self.rate, prior.shape, prior.rate))
        log_gammas = torch.lgamma(a0) - torch.lgamma(a)
        return (a - a0) * torch.digamma(a) + log_gammas + a0 * (b / b0).log() + a * (b0 - b) / b

    def given_squares(self, sum_of_squares: Tensor | float, count: int) -> GammaPrecision:
        """The conjugate posterior ``Gamma(a + count/2, b + ½ Σr²)`` after ``count`` residuals ``r ~ N(0, 1/τ)``."""
        return GammaPrecision(self.shape + 0.5 * count, self.rate + 0.5 * sum_of_squares)
