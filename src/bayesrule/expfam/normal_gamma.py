"""Normal–Gamma distribution of a mean and a precision, conjugate to a Gaussian with neither known."""

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
from bayesrule.expfam.gamma import Gamma
from bayesrule.expfam.space import Block, ParameterSpace
from bayesrule.random import NoiseSource

Batch = Float[Tensor, "*batch"]


class NormalGammaSpace(ParameterSpace):
    """α = λ_log + ½ > 0, κ = −2λ_quadratic > 0 and β = −λ_precision − λ_linear²/2κ > 0."""

    blocks: Mapping[str, Block] = {name: Block(()) for name in ("log", "precision", "linear", "quadratic")}
    description = "'log' above -1/2, 'quadratic' below 0 and 'precision' below 'linear'² / (4 'quadratic')"

    def contains(self, natural: Natural) -> Tensor:
        """See :class:`ParameterSpace`."""
        finite = torch.stack([value.isfinite() for _, value in natural.items]).all(0)
        _, strength, shape, rate = _usual(natural)
        return finite & (shape > 0) & (strength > 0) & (rate > 0)

    def from_normal(self, noise: Natural) -> Natural:
        """See :class:`ParameterSpace`."""
        shape, rate, strength = noise["log"].exp(), noise["precision"].exp(), noise["quadratic"].exp()
        return _natural(noise["linear"], strength, shape, rate)


@dataclass(frozen=True)
class NormalGamma(ExponentialFamily):
    """τ ~ Gamma(α, β) and x | τ ~ N(m, 1/(κτ)): T(x, τ) = (log τ, τ, τx, τx²).

    λ = (α − ½, −β − ½κm², κm, −½κ) and μ = (ψ(α) − log β, α/β, mα/β, 1/κ + m²α/β). One member is the pair θ = (x, τ);
    a vector of independent ones is a batch.
    """

    space: ClassVar[ParameterSpace] = NormalGammaSpace()

    def from_usual(self, mean: Batch, strength: Batch, shape: Batch, rate: Batch) -> Natural:
        """λ from m, κ, α and β."""
        return self.check(_natural(mean, strength, shape, rate))

    def to_usual(self, natural: Natural) -> tuple[Batch, Batch, Batch, Batch]:
        """The mean m, its strength κ, the shape α and the rate β."""
        return _usual(natural)

    def statistics(self, theta: Float[Tensor, "*batch 2"]) -> Expectation:
        """T(x, τ) = (log τ, τ, τx, τx²)."""
        x, precision = theta[..., 0], theta[..., 1]
        return Expectation(log=precision.log(), precision=precision, linear=precision * x, quadratic=precision * x**2)

    def log_partition(self, natural: Natural) -> Batch:
        """A(λ) = log Γ(α) − α log β − ½ log(κ/2π)."""
        _, strength, shape, rate = _usual(natural)
        return torch.lgamma(shape) - shape * rate.log() - 0.5 * (strength / (2 * math.pi)).log()

    def to_natural(self, expectation: Expectation) -> Natural:
        """By m = μ_linear/μ_precision, 1/κ = μ_quadratic − m μ_linear, and the gamma's own way to (α, β)."""
        mean = expectation["linear"] / expectation["precision"]
        strength = 1 / (expectation["quadratic"] - mean * expectation["linear"])
        gamma = Gamma()
        moments = Expectation(log=expectation["log"], linear=expectation["precision"])
        return _natural(mean, strength, *gamma.to_shape_rate(gamma.to_natural(moments)))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """The precision by rejection, then x = m + ε/√(κτ)."""
        mean, strength, shape, rate = _usual(natural)
        precision = Gamma().sample(Natural(log=shape - 1, linear=-rate), noise, sample_shape)
        x = mean + noise(tuple(precision.shape), "normal", mean) * (strength * precision).rsqrt()
        return torch.stack([x, precision], dim=-1)


def _usual(natural: Natural) -> tuple[Batch, Batch, Batch, Batch]:
    strength = -2 * natural["quadratic"]
    mean = natural["linear"] / strength
    return mean, strength, natural["log"] + 0.5, -natural["precision"] - 0.5 * natural["linear"] * mean


def _natural(mean: Batch, strength: Batch, shape: Batch, rate: Batch) -> Natural:
    return Natural(
        log=shape - 0.5,
        precision=-rate - 0.5 * strength * mean.square(),
        linear=strength * mean,
        quadratic=-0.5 * strength,
    )
