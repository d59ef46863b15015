"""Gaussian with a fixed covariance: the family behind gradient descent and SGD."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam.base_measure import BaseMeasure
from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.gaussian import GaussianFamily, Matrix, Vector
from bayesrule.expfam.precision import correlate, solve_precision
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource


@dataclass(frozen=True, eq=False)
class GaussianBase(BaseMeasure):
    """log h(θ) = ½ log|S/2π| − ½ θᵀSθ with S = LLᵀ   (below Eq. 35, corrected)."""

    precision_cholesky: Float[Tensor, "dim dim"]

    def log_density(self, theta: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
        """½ log|S/2π| − ½ |Lᵀθ|²."""
        half_logdet = self.precision_cholesky.diagonal().log().sum()
        half_quadratic = 0.5 * (theta @ self.precision_cholesky).square().sum(-1)
        return half_logdet - 0.5 * theta.shape[-1] * math.log(2 * math.pi) - half_quadratic

    def expected_log_density(self, expectation: Expectation) -> Tensor:
        """E_q[θᵀSθ] = mᵀSm + dim."""
        mean = expectation["linear"]
        return self.log_density(mean) - 0.5 * mean.shape[-1]

    def gradient(self, natural: Natural) -> Natural:
        """−Sm = −λ: this family's entropy is constant, and Eq. 6 becomes λ ← λ − ρ·∇_μ E_q[ℓ]."""
        return -natural


@dataclass(frozen=True, eq=False)
class GaussianFixed(GaussianFamily):
    """N(m, S⁻¹) with known S: λ = Sm, T(θ) = θ, μ = m, A(λ) = ½ λᵀS⁻¹λ   (Table 2; Sec. 1.3.1 and 4.1).

    Args:
        precision: S, symmetric positive definite.
    """

    precision: Float[Tensor, "dim dim"]
    base: GaussianBase = field(init=False, repr=False)
    sizes: Mapping[str, int] = field(init=False, repr=False)
    space: ClassVar[ParameterSpace] = Blockwise(linear=Block(("dim",)))

    def __post_init__(self) -> None:
        if self.precision.ndim != 2 or self.precision.shape[0] != self.precision.shape[1]:
            raise ShapeMismatch("the precision must be one square matrix", got=tuple(self.precision.shape))
        cholesky, info = torch.linalg.cholesky_ex(self.precision)
        if info != 0 or not torch.allclose(self.precision, self.precision.mT):
            raise InvalidArgument("the precision must be symmetric positive definite", got=self.precision)
        object.__setattr__(self, "base", GaussianBase(cholesky))
        object.__setattr__(self, "sizes", {"dim": len(cholesky)})

    def from_mean(self, mean: Float[Tensor, "*batch dim"]) -> Natural:
        """λ = Sm."""
        return self.check(Natural(linear=mean @ self.precision))

    def to_mean(self, natural: Natural) -> Float[Tensor, "*batch dim"]:
        """The mean m = S⁻¹λ."""
        return solve_precision(self.base.precision_cholesky, natural["linear"])

    def mean(self, natural: Natural) -> Float[Tensor, "*batch dim"]:
        """See :class:`GaussianFamily`."""
        return self.to_mean(natural)

    def precision_matrix(self, natural: Natural) -> Float[Tensor, "*batch dim dim"]:
        """See :class:`GaussianFamily`."""
        return self.precision.expand(*natural["linear"].shape[:-1], *self.precision.shape)

    def bonnet_price(self, natural: Natural, gradient: Vector, curvature: Matrix) -> Natural:
        """∇_μ E_q[ℓ] = E_q[∇ℓ]   (Eq. 7)."""
        return Natural(linear=gradient)

    def statistics(self, theta: Float[Tensor, "*batch dim"]) -> Expectation:
        """T(θ) = θ."""
        return Expectation(linear=theta)

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = ½ λᵀS⁻¹λ."""
        return 0.5 * (natural["linear"] * self.to_mean(natural)).sum(-1)

    def to_natural(self, expectation: Expectation) -> Natural:
        """λ = Sμ."""
        return Natural(linear=expectation["linear"] @ self.precision)

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ = m + L⁻ᵀε with S = LLᵀ."""
        mean = self.to_mean(natural)
        standard = noise(sample_shape + tuple(mean.shape), "normal", mean)
        return mean + correlate(self.base.precision_cholesky, standard)
