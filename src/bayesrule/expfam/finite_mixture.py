"""Finite mixtures together with the component's indicator: then they are exponential families, or nearly so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.base_measure import BaseMeasure, EntropyWithLoss
from bayesrule.expfam.categorical import contrasts, draw_one_hot, with_reference, with_rest
from bayesrule.expfam.coordinates import Coordinates, Expectation, Natural
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.space import Block, ParameterSpace
from bayesrule.random import NoiseSource

LOGITS = "logits"
Point = TypeVar("Point", bound=Coordinates)


class MixtureSpace(ParameterSpace):
    """Log-odds that are free, and a natural parameter of the component's family for every component."""

    def __init__(self, component: ParameterSpace) -> None:
        self._component = component
        self.blocks = {LOGITS: Block(("components-1",))} | {
            name: Block(("components", *block.shape), block.domain, block.symmetric)
            for name, block in component.blocks.items()
        }

    @property
    def description(self) -> str:
        """See :class:`ParameterSpace`."""
        return f"finite {LOGITS!r}, and for each component {self._component.description}"

    def contains(self, natural: Natural) -> Tensor:
        """See :class:`ParameterSpace`."""
        return natural[LOGITS].isfinite().all(-1) & self._component.contains(components(natural)).all(-1)

    def from_normal(self, noise: Natural) -> Natural:
        """See :class:`ParameterSpace`."""
        return Natural(logits=noise[LOGITS], **self._component.from_normal(components(noise)).blocks)


@dataclass(frozen=True)
class FiniteMixture(ExponentialFamily):
    """q(z = k, x) = π_k q_k(x) with free weights: an exponential family of the pair θ = (z one-hot, x).

    λ = (η_k, λ_k) with η_k = log π_k − A(λ_k) less its value for the last component, T = (z_k, z_k T(x)) and
    μ = (π_k, π_k μ_k); A(η, λ) = log Σ_k exp(η_k + A(λ_k)). Maximum likelihood with complete data is ``to_natural`` of
    the mean statistics, so this is also the M-step of EM.

    Args:
        component: Family of the components, whose members are vectors.
        count: How many components.
    """

    component: ExponentialFamily
    count: int
    space: ParameterSpace = field(init=False, repr=False)  # type: ignore[misc]  # differs from one instance to another
    sizes: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "space", MixtureSpace(self.component.space))
        object.__setattr__(self, "sizes", {"components": self.count, **self.component.sizes})

    def from_weights(self, weights: Float[Tensor, "*batch components"], naturals: Natural) -> Natural:
        """λ from the weights π_k and the components' λ_k."""
        return self.check(self._natural(weights.log(), naturals))

    def to_weights(self, natural: Natural) -> tuple[Float[Tensor, "*batch components"], Natural]:
        """The weights π_k and the components' λ_k."""
        return torch.softmax(self._scores(natural), dim=-1), components(natural)

    def responsibilities(self, natural: Natural, x: Tensor) -> Float[Tensor, "*batch components"]:
        """P(z = k | x)   (Eq. 71)."""
        weights, naturals = self.to_weights(natural)
        each = self.component.log_prob(naturals, _beside_components(x))
        return torch.softmax(weights.log() + each, dim=-1)

    def statistics(self, theta: Float[Tensor, "*batch both"]) -> Expectation:
        """T(z, x) = (z_k without the last, z_k T(x))."""
        indicator, x = theta[..., : self.count], theta[..., self.count :]
        return self.expected_statistics(indicator, x)

    def expected_statistics(self, probabilities: Float[Tensor, "*batch components"], x: Tensor) -> Expectation:
        """E[T(z, x)] for known x and P(z = k)."""
        blocks = self.component.statistics(_beside_components(x))
        weighted = _scale(blocks, probabilities, self.component.space.event_dims)
        return Expectation(logits=probabilities[..., :-1], **weighted.blocks)

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A = log Σ_k exp(η_k + A(λ_k))."""
        return self._scores(natural).logsumexp(-1)

    def to_natural(self, expectation: Expectation) -> Natural:
        """By π_k = μ_k and λ_k = ∇A*(μ_k/π_k)."""
        weights = with_rest(expectation[LOGITS])
        each = _scale(components(expectation), 1 / weights, self.component.space.event_dims)
        return self._natural(weights.log(), self.component.to_natural(each))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """An indicator, then x of its component."""
        indicator = draw_one_hot(self._scores(natural), noise, sample_shape)
        every = self.component.sample(components(natural), noise, sample_shape)
        return torch.cat([indicator, (indicator.unsqueeze(-1) * every).sum(-2)], dim=-1)

    def _scores(self, natural: Natural) -> Float[Tensor, "*batch components"]:
        return with_reference(natural[LOGITS]) + self.component.log_partition(components(natural))

    def _natural(self, log_weights: Float[Tensor, "*batch components"], naturals: Natural) -> Natural:
        scores = log_weights - self.component.log_partition(naturals)
        return Natural(logits=contrasts(scores), **naturals.blocks)


@dataclass(frozen=True, eq=False)
class FixedWeightsMixture:
    """q(z = k, x) = π_k q_k(x) with known π: the conditional family of Table 2 and Eq. 27, a candidate of the rule.

    λ_k are the components' own and μ_k = E_q[1[z=k] T(x)] = π_k E_k[T(x)], in blocks whose dimension before the event
    is that of the components. The entropy that counts is that of x, which is no function of the λ's in closed form: it
    reaches the rule with the loss, as E_q[ℓ + log q] (Eq. 28; the gradient of log q itself has mean 0).
    """

    component: ExponentialFamily
    weights: Float[Tensor, " components"]
    base: BaseMeasure = field(default=EntropyWithLoss(), repr=False)

    def __post_init__(self) -> None:
        if self.weights.ndim != 1 or not (self.weights > 0).all() or abs(float(self.weights.sum()) - 1) > 1e-6:
            raise InvalidArgument("the weights of a mixture must be positive and sum to 1", got=self.weights)

    @property
    def space(self) -> ParameterSpace:
        """That of a component; the components are a batch."""
        return self.component.space

    def valid(self, natural: Natural) -> Tensor:
        """Whether each component has λ_k ∈ Ω."""
        return self.component.valid(natural)

    def to_expectation(self, natural: Natural) -> Expectation:
        """μ_k = π_k ∇A(λ_k)."""
        return _scale(self.component.to_expectation(natural), self.weights, self.space.event_dims)

    def to_natural(self, expectation: Expectation) -> Natural:
        """λ_k = ∇A*(μ_k/π_k)."""
        return self.component.to_natural(_scale(expectation, 1 / self.weights, self.space.event_dims))

    def log_prob(self, natural: Natural, x: Tensor) -> Tensor:
        """Log Σ_k π_k q_k(x)."""
        each = self.component.log_prob(natural, _beside_components(x))
        return (self.weights.log() + each).logsumexp(-1)

    def responsibilities(self, natural: Natural, x: Tensor) -> Float[Tensor, "*batch components"]:
        """P(z = k | x)   (Eqs. 32 and 71)."""
        each = self.component.log_prob(natural, _beside_components(x))
        return torch.softmax(self.weights.log() + each, dim=-1)

    def kl(self, p: Natural, q: Natural) -> Tensor:
        """KL of the joint distributions of z and x: Σ_k π_k KL[p_k ‖ q_k]."""
        return (self.weights * self.component.kl(p, q)).sum(-1)


def components(point: Point) -> Point:
    """The blocks of the components, without the log-odds."""
    return type(point)(**{name: value for name, value in point.items if name != LOGITS})


def _beside_components(x: Tensor) -> Tensor:
    """X with a dimension of size 1 for the components, before the event; members of a family here are vectors."""
    return x.unsqueeze(-2)


def _scale(point: Point, factor: Tensor, event_dims: Mapping[str, int]) -> Point:
    """Each component's blocks times its factor."""
    return type(point)(
        **{name: factor.reshape(*factor.shape, *(1,) * event_dims[name]) * value for name, value in point.items}
    )
