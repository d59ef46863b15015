"""Independent signs ±1: the family behind BayesBiNN and the straight-through estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource

Vector = Float[Tensor, "*batch dim"]


@dataclass(frozen=True)
class Bernoulli(ExponentialFamily):
    """θ ∈ {−1, +1}^dim with P(θ = 1) = p: λ = ½ log(p/(1−p)), T(θ) = θ, μ = 2p − 1 = tanh λ   (Table 2; Sec. 4.5)."""

    space: ClassVar[ParameterSpace] = Blockwise(linear=Block(("dim",)))

    def from_probability(self, probability: Vector) -> Natural:
        """λ = ½ log(p/(1−p)), for 0 < p < 1."""
        if not ((probability > 0) & (probability < 1)).all():
            raise InvalidArgument("the probability of +1 must lie strictly between 0 and 1", got=probability)
        return self.check(Natural(linear=0.5 * torch.logit(probability)))

    def to_probability(self, natural: Natural) -> Vector:
        """P(θ = 1) = 1/(1 + exp(−2λ))."""
        return torch.sigmoid(2 * natural["linear"])

    def statistics(self, theta: Vector) -> Expectation:
        """T(θ) = 2·1[θ = 1] − 1 = θ."""
        return Expectation(linear=theta)

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = Σ log(exp λ + exp(−λ))."""
        return torch.logaddexp(natural["linear"], -natural["linear"]).sum(-1)

    def to_natural(self, expectation: Expectation) -> Natural:
        """λ = artanh μ."""
        return Natural(linear=torch.atanh(expectation["linear"]))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ = sign(λ + ½ log(u/(1−u))) with u uniform; draws carry no gradient."""
        logits = natural["linear"]
        uniform = noise(sample_shape + tuple(logits.shape), "uniform", logits)
        return torch.where(uniform > torch.sigmoid(-2 * logits), 1.0, -1.0).to(logits.dtype)
