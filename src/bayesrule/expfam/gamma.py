"""Gamma distribution, conjugate to rates and precisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.domains import Above, Below
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.newton import solve_natural
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource

Batch = Float[Tensor, "*batch"]


@dataclass(frozen=True)
class Gamma(ExponentialFamily):
    """θ > 0 with shape α and rate β: λ = (α − 1, −β), T(θ) = (log θ, θ), μ = (ψ(α) − log β, α/β).

    One member is a scalar; a vector of independent ones is a batch.
    """

    space: ClassVar[ParameterSpace] = Blockwise(log=Block((), Above(-1.0)), linear=Block((), Below(0.0)))

    def from_shape_rate(self, shape: Batch, rate: Batch) -> Natural:
        """λ = (α − 1, −β)."""
        return self.check(Natural(log=shape - 1, linear=-rate))

    def to_shape_rate(self, natural: Natural) -> tuple[Batch, Batch]:
        """α and β."""
        return natural["log"] + 1, -natural["linear"]

    def statistics(self, theta: Batch) -> Expectation:
        """T(θ) = (log θ, θ)."""
        return Expectation(log=theta.log(), linear=theta)

    def log_partition(self, natural: Natural) -> Batch:
        """A(λ) = log Γ(α) − α log β."""
        shape, rate = self.to_shape_rate(natural)
        return torch.lgamma(shape) - shape * rate.log()

    def to_natural(self, expectation: Expectation) -> Natural:
        """Newton's method on ψ(α) − log β = μ_log, α/β = μ_linear, from α ≈ (3 − g + √((g−3)² + 24g)) / 12g.

        Here g = log E[θ] − E[log θ] > 0; the start is within 2 % of the solution (Minka, 2002).
        """
        mean = expectation["linear"]
        gap = mean.log() - expectation["log"]
        shape = (3 - gap + ((gap - 3).square() + 24 * gap).sqrt()) / (12 * gap)
        return solve_natural(self, expectation, start=Natural(log=shape - 1, linear=-shape / mean))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ = (draw from Gamma(α, 1)) / β, by rejection; draws carry no gradient."""
        shape, rate = (value.detach() for value in self.to_shape_rate(natural))
        unit_rate = draw_unit_rate(shape.expand(sample_shape + tuple(shape.shape)), noise)
        return unit_rate / rate


def draw_unit_rate(shape: Batch, noise: NoiseSource) -> Batch:
    """Draw from Gamma(α, 1): d·v with v = (1 + x/√(9d))³ and d = α − ⅓, accepted if log u < ½x² + d(1 − v + log v).

    For α < 1 the draw is Gamma(α + 1, 1)·u^(1/α) (Marsaglia & Tsang, 2000), kept above the smallest number so that
    its logarithm is finite.
    """
    d = torch.where(shape < 1, shape + 1, shape) - 1 / 3
    draw, pending = torch.zeros_like(d), torch.ones_like(d, dtype=torch.bool)
    while pending.any():
        x, u = noise(tuple(d.shape), "normal", d), noise(tuple(d.shape), "uniform", d)
        v = (1 + x / (9 * d).sqrt()).clamp(min=0) ** 3
        accepted = pending & (u.log() < 0.5 * x.square() + d * (1 - v + v.log()))
        draw = torch.where(accepted, d * v, draw)
        pending = pending & ~accepted
    boost = torch.where(shape < 1, noise(tuple(d.shape), "uniform", d) ** (1 / shape), 1.0)
    return (draw * boost).clamp(min=torch.finfo(d.dtype).tiny)
