"""Gaussian with a full covariance: the family behind Newton's method, ridge regression and Laplace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.domains import NegativeDefinite
from bayesrule.expfam.gaussian import GaussianFamily, check_precision
from bayesrule.expfam.precision import correlate, solve_precision
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource

Vector = Float[Tensor, "*batch dim"]
Matrix = Float[Tensor, "*batch dim dim"]


@dataclass(frozen=True)
class GaussianFull(GaussianFamily):
    """N(m, S⁻¹): λ = (Sm, −½S), T(θ) = (θ, θθᵀ), μ = (m, mmᵀ + S⁻¹)   (Eq. 9)."""

    space: ClassVar[ParameterSpace] = Blockwise(
        linear=Block(("dim",)), quadratic=Block(("dim", "dim"), NegativeDefinite(), symmetric=True)
    )

    def from_mean_precision(self, mean: Vector, precision: Matrix) -> Natural:
        """λ = (Sm, −½S)."""
        check_precision(mean, precision, matrix=True)
        return self.check(_natural(mean, precision))

    def to_mean_precision(self, natural: Natural) -> tuple[Vector, Matrix]:
        """The mean m and the precision S."""
        precision = _precision(natural)
        return solve_precision(torch.linalg.cholesky(precision), natural["linear"]), precision

    def mean(self, natural: Natural) -> Vector:
        """See :class:`GaussianFamily`."""
        return self.to_mean_precision(natural)[0]

    def precision_matrix(self, natural: Natural) -> Matrix:
        """See :class:`GaussianFamily`."""
        return _precision(natural)

    def bonnet_price(
        self, natural: Natural, gradient: Float[Tensor, " dim"], curvature: Float[Tensor, "dim dim"]
    ) -> Natural:
        """See :class:`GaussianFamily`."""
        return Natural(linear=gradient - curvature @ self.mean(natural), quadratic=0.5 * curvature)

    def statistics(self, theta: Vector) -> Expectation:
        """T(θ) = (θ, θθᵀ)."""
        return Expectation(linear=theta, quadratic=_outer(theta))

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = ½ mᵀSm − ½ log|S/2π| with S = LLᵀ and mᵀSm = |L⁻¹λ₁|²."""
        cholesky = torch.linalg.cholesky(_precision(natural))
        half_logdet = cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        whitened = torch.linalg.solve_triangular(cholesky, natural["linear"].unsqueeze(-1), upper=False).squeeze(-1)
        dim = whitened.shape[-1]
        return 0.5 * whitened.square().sum(-1) - half_logdet + 0.5 * dim * math.log(2 * math.pi)

    def to_natural(self, expectation: Expectation) -> Natural:
        """By S = (μ₂ − μ₁μ₁ᵀ)⁻¹ and m = μ₁."""
        mean = expectation["linear"]
        covariance = expectation["quadratic"] - _outer(mean)
        return _natural(mean, torch.cholesky_inverse(torch.linalg.cholesky(covariance)))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ = m + L⁻ᵀε with S = LLᵀ."""
        cholesky = torch.linalg.cholesky(_precision(natural))
        mean = solve_precision(cholesky, natural["linear"])
        return mean + correlate(cholesky, noise(sample_shape + tuple(mean.shape), "normal", mean))


def _precision(natural: Natural) -> Matrix:
    # −2λ₂, symmetric even when rounding has made λ₂ less so: the gradient of A is then symmetric too.
    return -(natural["quadratic"] + natural["quadratic"].mT)


def _natural(mean: Vector, precision: Matrix) -> Natural:
    return Natural(linear=(precision @ mean.unsqueeze(-1)).squeeze(-1), quadratic=-0.5 * precision)


def _outer(theta: Vector) -> Matrix:
    return theta.unsqueeze(-1) * theta.unsqueeze(-2)
