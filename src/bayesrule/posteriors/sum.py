"""Sums of two covariances: the noises add."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.work import Work
from bayesrule.typing import Contraction


class SumCovariance(CovarianceOperator):
    """``Σ = Σ₁ + Σ₂`` over fan-in × fan-out matrices: a draw is the sum of two independent draws.

    What a sum has no general form of, `solve` and `logdet`, is left to its subclasses.
    """

    noise_copies = 2

    @property
    @abstractmethod
    def terms(self) -> tuple[CovarianceOperator, CovarianceOperator]:
        """Σ₁ and Σ₂."""

    @property
    def shape(self) -> torch.Size:
        """That of the terms."""
        return self.terms[0].shape

    def matmul(self, x: Tensor) -> Tensor:
        """``Σ₁ x + Σ₂ x``."""
        first, second = self.terms
        return first.matmul(x) + second.matmul(x)

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``R₁ ε₁ + R₂ ε₂``: the two noises are stacked just before the event."""
        first, second = self.terms
        return first.sqrt_matmul(noise[..., 0, :, :]) + second.sqrt_matmul(noise[..., 1, :, :])

    def diagonal(self) -> Tensor:
        """Variances add."""
        first, second = self.terms
        return first.diagonal() + second.diagonal()

    def trace(self, precision: Tensor) -> Tensor:
        """Traces add."""
        first, second = self.terms
        return first.trace(precision) + second.trace(precision)

    def projects(self, contraction: Contraction) -> bool:
        """Where both terms do."""
        return all(term.projects(contraction) for term in self.terms)

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """Both noises."""
        first, second = self.terms
        return (*first.project(contraction, x), *second.project(contraction, x))

    def draw_work(self) -> Work:
        """Both draws."""
        first, second = self.terms
        return first.draw_work() + second.draw_work()

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """Both noises."""
        first, second = self.terms
        return first.projection_work(contraction, x) + second.projection_work(contraction, x)
