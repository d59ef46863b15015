"""Gaussian Markov chain: a Gaussian whose precision is block-tridiagonal, the family behind the Kalman smoother."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.precision import correlate, solve_precision
from bayesrule.expfam.space import Block, ParameterSpace
from bayesrule.random import NoiseSource

States = Float[Tensor, "*batch length dim"]
Squares = Float[Tensor, "*batch length dim dim"]
Links = Float[Tensor, "*batch links dim dim"]


class ChainGaussianSpace(ParameterSpace):
    """The precision with blocks S_tt = −2λ_quadratic and S_t,t+1 = −λ_link is positive definite."""

    blocks: Mapping[str, Block] = {
        "linear": Block(("length", "dim")),
        "quadratic": Block(("length", "dim", "dim"), symmetric=True),
        "link": Block(("length-1", "dim", "dim")),
    }
    description = "finite 'linear', and symmetric 'quadratic' and 'link' that make a positive definite precision"

    def contains(self, natural: Natural) -> Tensor:
        """See :class:`ParameterSpace`."""
        square = natural["quadratic"]
        tolerance = torch.finfo(square.dtype).eps ** 0.5 * square.abs().amax((-3, -2, -1))
        inside = natural["linear"].isfinite().all(-1).all(-1) & natural["link"].isfinite().flatten(-3).all(-1)
        inside = inside & ((square - square.mT).abs().amax((-3, -2, -1)) <= tolerance)
        conditional = -2 * square[..., 0, :, :]
        for t in range(square.shape[-3]):
            cholesky, info = torch.linalg.cholesky_ex(conditional)
            inside = inside & (info == 0)
            if t + 1 < square.shape[-3]:
                link = natural["link"][..., t, :, :]
                half = torch.linalg.solve_triangular(cholesky, link, upper=False)
                conditional = -2 * square[..., t + 1, :, :] - half.mT @ half
        return inside

    def from_normal(self, noise: Natural) -> Natural:
        """See :class:`ParameterSpace`. The diagonal blocks are at least I, the others shorter than ½."""
        dim = noise["linear"].shape[-1]
        square = -0.5 * (torch.eye(dim).to(noise["linear"]) + noise["quadratic"] @ noise["quadratic"].mT / dim)
        length = noise["link"].square().sum((-2, -1), keepdim=True).sqrt()
        return Natural(linear=noise["linear"], quadratic=square, link=0.4 * noise["link"] / (1 + length))


@dataclass(frozen=True)
class ChainGaussian(ExponentialFamily):
    """x_1, …, x_T with log-density −½ Σ x_tᵀS_tt x_t − Σ x_tᵀS_t,t+1 x_{t+1} + Σ b_tᵀx_t + constant.

    λ = (b_t, −½S_tt, −S_t,t+1), T(x) = (x_t, x_t x_tᵀ, x_t x_{t+1}ᵀ). A is computed by elimination from the first state
    to the last (the information filter), so μ = ∇A by automatic differentiation is the smoother.
    """

    space: ClassVar[ParameterSpace] = ChainGaussianSpace()

    def from_precision(self, linear: States, diagonal: Squares, link: Links) -> Natural:
        """λ from b_t, S_tt and S_t,t+1."""
        return self.check(Natural(linear=linear, quadratic=-0.5 * diagonal, link=-link))

    def moments(self, expectation: Expectation) -> tuple[States, Squares, Links]:
        """E[x_t], Cov[x_t] and Cov[x_t, x_{t+1}]."""
        mean = expectation["linear"]
        covariance = expectation["quadratic"] - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        cross = expectation["link"] - mean[..., :-1, :].unsqueeze(-1) * mean[..., 1:, :].unsqueeze(-2)
        return mean, covariance, cross

    def statistics(self, theta: States) -> Expectation:
        """T(x) = (x_t, x_t x_tᵀ, x_t x_{t+1}ᵀ)."""
        return Expectation(
            linear=theta,
            quadratic=theta.unsqueeze(-1) * theta.unsqueeze(-2),
            link=theta[..., :-1, :].unsqueeze(-1) * theta[..., 1:, :].unsqueeze(-2),
        )

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = Σ_t ½ h_tᵀJ_t⁻¹h_t − ½ log|J_t/2π| over the conditionals of :func:`_eliminate`."""
        total = natural["linear"].new_zeros(())
        for cholesky, shift in _eliminate(natural):
            whitened = torch.linalg.solve_triangular(cholesky, shift.unsqueeze(-1), upper=False).squeeze(-1)
            half_logdet = cholesky.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            total = total + 0.5 * whitened.square().sum(-1) - half_logdet
        length, dim = natural["linear"].shape[-2:]
        return total + 0.5 * length * dim * math.log(2 * math.pi)

    def to_natural(self, expectation: Expectation) -> Natural:
        """S = Σ_t (precision of the pair t, t+1) − Σ over inner states (precision of x_t), b = Sm."""
        mean, covariance, cross = self.moments(expectation)
        dim = mean.shape[-1]
        single = _inverse(covariance)
        pair = _inverse(
            torch.cat(
                [
                    torch.cat([covariance[..., :-1, :, :], cross], dim=-1),
                    torch.cat([cross.mT, covariance[..., 1:, :, :]], dim=-1),
                ],
                dim=-2,
            )
        )
        none = torch.zeros_like(single[..., :1, :, :])
        first = torch.cat([pair[..., :dim, :dim] - single[..., :-1, :, :], none], dim=-3)
        second = torch.cat([none, pair[..., dim:, dim:] - single[..., 1:, :, :]], dim=-3)
        diagonal, link = single + first + second, pair[..., :dim, dim:]
        return Natural(linear=_multiply(diagonal, link, mean), quadratic=-0.5 * diagonal, link=-link)

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """From the last state to the first: x_t | x_{t+1} ~ N(J_t⁻¹(h_t + λ_link x_{t+1}), J_t⁻¹)."""
        conditionals = _eliminate(natural)
        like = natural["linear"]
        standard = noise(sample_shape + tuple(like.shape), "normal", like)
        states: list[Tensor] = []
        for t in reversed(range(like.shape[-2])):
            cholesky, shift = conditionals[t]
            if states:
                shift = shift + (natural["link"][..., t, :, :] @ states[-1].unsqueeze(-1)).squeeze(-1)
            states.append(solve_precision(cholesky, shift) + correlate(cholesky, standard[..., t, :]))
        return torch.stack(states[::-1], dim=-2)


def _eliminate(natural: Natural) -> list[tuple[Tensor, Tensor]]:
    """Cholesky factor of J_t and h_t of each state given the next, all earlier ones integrated out.

    J_{t+1} = S_{t+1,t+1} − S_{t+1,t}J_t⁻¹S_{t,t+1} and h_{t+1} = b_{t+1} − S_{t+1,t}J_t⁻¹h_t.
    """
    diagonal = -(natural["quadratic"] + natural["quadratic"].mT)  # symmetric even where rounding is not
    conditional, shift = diagonal[..., 0, :, :], natural["linear"][..., 0, :]
    found: list[tuple[Tensor, Tensor]] = []
    for t in range(diagonal.shape[-3]):
        if t > 0:
            link = natural["link"][..., t - 1, :, :]
            solved = torch.cholesky_solve(link, found[-1][0])
            conditional = diagonal[..., t, :, :] - link.mT @ solved
            shift = natural["linear"][..., t, :] + (solved.mT @ found[-1][1].unsqueeze(-1)).squeeze(-1)
        found.append((torch.linalg.cholesky((conditional + conditional.mT) / 2), shift))
    return found


def _inverse(matrix: Tensor) -> Tensor:
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def _multiply(diagonal: Squares, link: Links, vector: States) -> States:
    """Sm for the block-tridiagonal S."""
    column = vector.unsqueeze(-1)
    none = torch.zeros_like(column[..., :1, :, :])
    above = torch.cat([link @ column[..., 1:, :, :], none], dim=-3)
    below = torch.cat([none, link.mT @ column[..., :-1, :, :]], dim=-3)
    return (diagonal @ column + above + below).squeeze(-1)
