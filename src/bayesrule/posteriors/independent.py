"""What covariances with independent entries share: everything follows from the standard deviations."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.linalg import event_dims, safe_sqrt
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.typing import Contraction


class IndependentCovariance(CovarianceOperator):
    """``Σ = diag(σ²)``; a structure in σ may replace `logdet`, `trace` and `output_variance` by cheaper forms."""

    independent = True
    std: Tensor
    """σ, in the event's shape: owed by every subclass, as a field or a property."""

    @property
    def shape(self) -> torch.Size:
        """That of the standard deviations."""
        return self.std.shape

    def matmul(self, x: Tensor) -> Tensor:
        """``σ² ∘ x``."""
        return self.std.square() * x

    def solve(self, x: Tensor) -> Tensor:
        """``x / σ²``."""
        return x / self.std.square()

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``σ ∘ ε``."""
        return self.std * noise

    def logdet(self) -> Tensor:
        """``2 Σ log σ``."""
        return 2 * self.std.log().sum(event_dims(self.event_dim))

    def diagonal(self) -> Tensor:
        """``σ²``."""
        return self.std.square()

    def projects(self, contraction: Contraction) -> bool:
        """For every layer."""
        return True

    def output_variance(self, contraction: Contraction, x: Tensor) -> Tensor:
        """``op(x², σ²)``: the variance of every output."""
        return contraction(contraction.square(x), self.std.square())

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """``√op(x², σ²) ∘ ε``   [Kingma et al. 2015]."""
        return (OutputNoise(safe_sqrt(self.output_variance(contraction, x))),)
