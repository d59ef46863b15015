"""Normal–Wishart distribution of a mean and a precision matrix, conjugate to a Gaussian with neither known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.domains import NegativeDefinite
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.gamma import draw_unit_rate
from bayesrule.expfam.newton import invert_gradient
from bayesrule.expfam.space import Block, ParameterSpace
from bayesrule.random import NoiseSource

Batch = Float[Tensor, "*batch"]
Vector = Float[Tensor, "*batch dim"]
Matrix = Float[Tensor, "*batch dim dim"]
Usual = tuple[Vector, Batch, Batch, Matrix]


class NormalWishartSpace(ParameterSpace):
    """ν = 2λ_log + dim > dim − 1, κ = −2λ_quadratic > 0 and V = −2λ_precision − λ_linear λ_linearᵀ/κ ≻ 0."""

    blocks: Mapping[str, Block] = {
        "log": Block(()),
        "precision": Block(("dim", "dim"), symmetric=True),
        "linear": Block(("dim",)),
        "quadratic": Block(()),
    }
    description = (
        "'log' above -1/2, 'quadratic' below 0 and 'precision' below 'linear' 'linear'ᵀ / (4 'quadratic') "
        "in the order of symmetric matrices"
    )

    def contains(self, natural: Natural) -> Tensor:
        """See :class:`ParameterSpace`."""
        finite = natural["linear"].isfinite().all(-1) & natural["log"].isfinite() & natural["quadratic"].isfinite()
        strength = -2 * natural["quadratic"]
        scale = natural["precision"] + 0.5 * _outer(natural["linear"]) / strength[..., None, None]
        definite = NegativeDefinite().contains(torch.where(finite[..., None, None], scale, -torch.inf), 2)
        return finite & (natural["log"] > -0.5) & (strength > 0) & definite

    def from_normal(self, noise: Natural) -> Natural:
        """See :class:`ParameterSpace`."""
        dim = noise["linear"].shape[-1]
        scale = -2 * NegativeDefinite().from_normal(noise["precision"])
        return _natural((noise["linear"], noise["quadratic"].exp(), dim + 2 * noise["log"].exp(), scale))


@dataclass(frozen=True)
class NormalWishart(ExponentialFamily):
    """Λ ~ Wishart(ν, V⁻¹) and x | Λ ~ N(m, (κΛ)⁻¹): T(x, Λ) = (log|Λ|, Λ, Λx, xᵀΛx).

    λ = ((ν − dim)/2, −½(V + κmmᵀ), κm, −½κ) and μ = (Σ_i ψ((ν+1−i)/2) + log|2V⁻¹|, νV⁻¹, νV⁻¹m, dim/κ + νmᵀV⁻¹m).
    θ is the matrix with x in its first column and Λ in the others.
    """

    space: ClassVar[ParameterSpace] = NormalWishartSpace()

    def from_usual(self, mean: Vector, strength: Batch, degrees: Batch, scale: Matrix) -> Natural:
        """λ from m, κ, ν and V, the *inverse* scale matrix: E[Λ] = νV⁻¹."""
        return self.check(_natural((mean, strength, degrees, scale)))

    def to_usual(self, natural: Natural) -> Usual:
        """The mean m, its strength κ, the degrees of freedom ν and the inverse scale V."""
        return _usual(natural)

    def statistics(self, theta: Float[Tensor, "*batch dim dim_plus_one"]) -> Expectation:
        """T(x, Λ) = (log|Λ|, Λ, Λx, xᵀΛx)."""
        x, precision = theta[..., 0], theta[..., 1:]
        linear = (precision @ x.unsqueeze(-1)).squeeze(-1)
        logdet = torch.linalg.slogdet(precision).logabsdet  # draws may be singular but for rounding
        return Expectation(log=logdet, precision=precision, linear=linear, quadratic=(x * linear).sum(-1))

    def log_partition(self, natural: Natural) -> Batch:
        """A(λ) = log Γ_dim(ν/2) + ½ν(dim log 2 − log|V|) − ½ dim log(κ/2π)."""
        _, strength, degrees, scale = _usual(natural)
        dim = scale.shape[-1]
        logdet = 2 * torch.linalg.cholesky(scale).diagonal(dim1=-2, dim2=-1).log().sum(-1)
        wishart = _log_multigamma(degrees / 2, dim) + 0.5 * degrees * (dim * math.log(2) - logdet)
        return wishart - 0.5 * dim * (strength / (2 * math.pi)).log()

    def to_natural(self, expectation: Expectation) -> Natural:
        """By m = E[Λ]⁻¹E[Λx], κ = dim/(E[xᵀΛx] − mᵀE[Λx]), ν by Newton's method, and V = νE[Λ]⁻¹."""
        cholesky = torch.linalg.cholesky(expectation["precision"])
        dim = cholesky.shape[-1]
        mean = torch.cholesky_solve(expectation["linear"].unsqueeze(-1), cholesky).squeeze(-1)
        strength = dim / (expectation["quadratic"] - (mean * expectation["linear"]).sum(-1))
        gap = 2 * cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1) - expectation["log"]
        degrees = _degrees(gap, dim)
        scale = degrees[..., None, None] * torch.cholesky_inverse(cholesky)
        return _natural((mean, strength, degrees, scale))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Λ = (L⁻ᵀA)(L⁻ᵀA)ᵀ with V = LLᵀ and Bartlett's triangular A, then x = m + LA⁻ᵀε/√κ."""
        mean, strength, degrees, scale = (value.detach() for value in _usual(natural))
        shape, dim = sample_shape + tuple(mean.shape), mean.shape[-1]
        half_degrees = 0.5 * (degrees.unsqueeze(-1) - torch.arange(dim).to(mean)).expand(shape)
        diagonal = (2 * draw_unit_rate(half_degrees, noise)).sqrt()
        bartlett = noise((*shape, dim), "normal", mean).tril(-1) + torch.diag_embed(diagonal)
        cholesky = torch.linalg.cholesky(scale)
        inverse = torch.linalg.solve_triangular(cholesky.mT, bartlett, upper=True)
        precision = inverse @ inverse.mT
        standard = noise(shape, "normal", mean).unsqueeze(-1)
        centred = cholesky @ torch.linalg.solve_triangular(bartlett.mT, standard, upper=True)
        x = mean.unsqueeze(-1) + centred * strength[..., None, None].rsqrt()
        return torch.cat([x, precision], dim=-1)


def _usual(natural: Natural) -> Usual:
    strength = -2 * natural["quadratic"]
    mean = natural["linear"] / strength.unsqueeze(-1)
    precision = natural["precision"] + natural["precision"].mT
    scale = -precision - strength[..., None, None] * _outer(mean)
    return mean, strength, 2 * natural["log"] + mean.shape[-1], scale


def _natural(usual: Usual) -> Natural:
    mean, strength, degrees, scale = usual
    return Natural(
        log=0.5 * (degrees - mean.shape[-1]),
        precision=-0.5 * (scale + strength[..., None, None] * _outer(mean)),
        linear=strength.unsqueeze(-1) * mean,
        quadratic=-0.5 * strength,
    )


def _outer(vector: Vector) -> Matrix:
    return vector.unsqueeze(-1) * vector.unsqueeze(-2)


def _log_multigamma(value: Batch, dim: int) -> Batch:
    """Log Γ_dim(a) = ¼dim(dim−1) log π + Σ_i log Γ(a − i/2); torch's own looks at the values, which vmap forbids."""
    shifted = value.unsqueeze(-1) - 0.5 * torch.arange(dim).to(value)
    return 0.25 * dim * (dim - 1) * math.log(math.pi) + torch.lgamma(shifted).sum(-1)


def _degrees(gap: Batch, dim: int) -> Batch:
    """ν with dim·log(ν/2) − Σ_i ψ((ν+1−i)/2) = log|E[Λ]| − E[log|Λ|], the gradient of a convex function of ν."""

    def potential(degrees: Float[Tensor, " 1"]) -> Tensor:
        return (_log_multigamma(degrees / 2, dim) + 0.5 * dim * degrees * (1 - (degrees / 2).log())).sum()

    members = gap.reshape(-1, 1).double()
    # For large ν the gap is about dim(dim+1)/2ν; near its least value, dim − 1, the last ψ has the pole.
    start = (dim - 1 + 0.5 * (0.5 * dim * (dim + 1) / members).clamp(min=1e-3)).detach()
    solution = invert_gradient(potential, -0.5 * members, start, lambda points: (points > dim - 1).all(-1))
    if solution is None:
        raise InvalidArgument(
            "no natural parameter was found that has this expectation",
            got=f"log|E[Λ]| − E[log|Λ|] = {gap}",
            remedy="It must be positive: the logarithm of a determinant is concave.",
        )
    return solution.reshape(gap.shape).to(gap.dtype)
