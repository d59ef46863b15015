"""Gaussian with a diagonal covariance: the family behind RMSprop, Adam, OGN and VOGN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.domains import Below
from bayesrule.expfam.gaussian import GaussianFamily, Matrix, check_precision
from bayesrule.expfam.gaussian import Vector as Gradient
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource

Vector = Float[Tensor, "*batch dim"]


@dataclass(frozen=True)
class GaussianDiagonal(GaussianFamily):
    """N(m, diag(s)⁻¹): λ = (s∘m, −½s), T(θ) = (θ, θ∘θ), μ = (m, m∘m + 1/s)   (Table 2, corrected)."""

    space: ClassVar[ParameterSpace] = Blockwise(linear=Block(("dim",)), quadratic=Block(("dim",), Below(0.0)))

    def from_mean_precision(self, mean: Vector, precision: Vector) -> Natural:
        """λ = (s∘m, −½s)."""
        check_precision(mean, precision, matrix=False)
        return self.check(Natural(linear=precision * mean, quadratic=-0.5 * precision))

    def to_mean_precision(self, natural: Natural) -> tuple[Vector, Vector]:
        """The mean m and the precision s."""
        precision = -2 * natural["quadratic"]
        return natural["linear"] / precision, precision

    def mean(self, natural: Natural) -> Vector:
        """See :class:`GaussianFamily`."""
        return self.to_mean_precision(natural)[0]

    def precision_matrix(self, natural: Natural) -> Float[Tensor, "*batch dim dim"]:
        """See :class:`GaussianFamily`."""
        return torch.diag_embed(-2 * natural["quadratic"])

    def bonnet_price(self, natural: Natural, gradient: Gradient, curvature: Matrix) -> Natural:
        """See :class:`GaussianFamily`."""
        diagonal = curvature.diagonal()
        return Natural(linear=gradient - diagonal * self.mean(natural), quadratic=0.5 * diagonal)

    def statistics(self, theta: Vector) -> Expectation:
        """T(θ) = (θ, θ∘θ)."""
        return Expectation(linear=theta, quadratic=theta.square())

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = ½ Σ [s m² − log(s/2π)]."""
        mean, precision = self.to_mean_precision(natural)
        return 0.5 * (natural["linear"] * mean - (precision / (2 * math.pi)).log()).sum(-1)

    def to_natural(self, expectation: Expectation) -> Natural:
        """By s = 1/(μ₂ − μ₁∘μ₁) and m = μ₁."""
        mean = expectation["linear"]
        precision = 1 / (expectation["quadratic"] - mean.square())
        return Natural(linear=precision * mean, quadratic=-0.5 * precision)

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ = m + ε/√s."""
        mean, precision = self.to_mean_precision(natural)
        return mean + noise(sample_shape + tuple(mean.shape), "normal", mean) * precision.rsqrt()
