"""Dirichlet distribution, conjugate to class probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.domains import Above
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.gamma import draw_unit_rate
from bayesrule.expfam.newton import solve_natural
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource

Vector = Float[Tensor, "*batch classes"]


@dataclass(frozen=True)
class Dirichlet(ExponentialFamily):
    """θ on the simplex of two classes or more: λ = α − 1, T(θ) = log θ, μ = ψ(α) − ψ(Σα)."""

    space: ClassVar[ParameterSpace] = Blockwise(log=Block(("classes",), Above(-1.0)))

    def from_concentration(self, concentration: Vector) -> Natural:
        """λ = α − 1."""
        return self.check(Natural(log=concentration - 1))

    def to_concentration(self, natural: Natural) -> Vector:
        """The concentration α."""
        return natural["log"] + 1

    def statistics(self, theta: Vector) -> Expectation:
        """T(θ) = log θ."""
        return Expectation(log=theta.log())

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = Σ log Γ(α_k) − log Γ(Σα)."""
        concentration = self.to_concentration(natural)
        return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))

    def to_natural(self, expectation: Expectation) -> Natural:
        """Newton's method on ψ(α_k) − ψ(Σα) = μ_k."""
        return solve_natural(self, expectation, start=Natural(log=_start(expectation["log"])))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ = g/Σg with g_k from Gamma(α_k, 1); draws carry no gradient."""
        concentration = self.to_concentration(natural).detach()
        draws = draw_unit_rate(concentration.expand(sample_shape + tuple(concentration.shape)), noise)
        return draws / draws.sum(-1, keepdim=True)


def _start(expected_log: Vector) -> Vector:
    """λ near the solution: three rounds of α_k ← ψ⁻¹(μ_k + ψ(Σα)) with a rough inverse of ψ   (Minka, 2000)."""
    concentration = torch.ones_like(expected_log)
    for _ in range(3):
        wanted = expected_log + torch.digamma(concentration.sum(-1, keepdim=True))
        concentration = torch.where(wanted > -2.2, wanted.exp() + 0.5, -1 / (wanted + 0.5772).clamp(max=-1.0))
    return concentration.detach() - 1
