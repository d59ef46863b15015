"""What an exponential family owes, and all that follows from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from bayesrule.expfam.base_measure import BaseMeasure, UnitBase
from bayesrule.expfam.coordinates import Expectation, Natural, inner
from bayesrule.expfam.space import ParameterSpace
from bayesrule.random import NoiseSource


class ExponentialFamily(ABC):
    """q_λ(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ)), regular and minimal (Khan & Rue, Sec. 1.2).

    Owed by a family: ``space``, ``statistics``, ``log_partition``, ``to_natural`` and ``sample``. Everything else
    follows and is final. λ, T and μ share their block names. Leading dimensions of the blocks are batch dimensions.

    The mathematics does not look at values, so that it runs under ``vmap`` and never waits for a device: ``check``
    does, at the edges.
    """

    space: ClassVar[ParameterSpace]
    """The blocks of λ, each with the name of its statistic, and the open set Ω of valid λ."""

    base: BaseMeasure = UnitBase()
    """h(θ); a family whose base measure is not 1 sets its own."""

    sizes: Mapping[str, int] = {}
    """Sizes that this member of the class fixes, such as ``{"dim": 3}``."""

    @abstractmethod
    def statistics(self, theta: Tensor) -> Expectation:
        """T(θ)."""

    @abstractmethod
    def log_partition(self, natural: Natural) -> Tensor:
        """A(λ), one number for each member of the batch."""

    @abstractmethod
    def to_natural(self, expectation: Expectation) -> Natural:
        """λ = ∇A*(μ), the inverse of ``to_expectation``; ``check`` the result where μ may be out of reach."""

    @abstractmethod
    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ ~ q_λ, of shape ``sample_shape + batch + event``."""

    @final
    def to_expectation(self, natural: Natural) -> Expectation:
        """μ = E_q[T(θ)] = ∇A(λ), by automatic differentiation."""
        gradient = torch.func.grad(lambda point: self.log_partition(point).sum())(natural)
        return Expectation(**gradient.blocks)

    @final
    def log_base(self, theta: Tensor) -> Tensor:
        """Log h(θ)."""
        return self.base.log_density(theta)

    @final
    def log_prob(self, natural: Natural, theta: Tensor) -> Tensor:
        """Log q_λ(θ) = log h(θ) + ⟨λ, T(θ)⟩ − A(λ)."""
        return self.log_base(theta) + self.inner(natural, self.statistics(theta)) - self.log_partition(natural)

    @final
    def entropy(self, natural: Natural) -> Tensor:
        """H(q) = E_q[−log q] = A(λ) − ⟨λ, μ⟩ − E_q[log h]   (App. B)."""
        expectation = self.to_expectation(natural)
        expected_log_base = self.base.expected_log_density(expectation)
        return self.log_partition(natural) - self.inner(natural, expectation) - expected_log_base

    @final
    def kl(self, p: Natural, q: Natural) -> Tensor:
        """KL[p ‖ q] = D_A(λ_q ‖ λ_p) = A(λ_q) − A(λ_p) − ⟨λ_q − λ_p, μ_p⟩   (Eq. 21); p and q broadcast."""
        expectation = self.to_expectation(p)
        return (self.log_partition(q) - self.inner(q, expectation)) - (
            self.log_partition(p) - self.inner(p, expectation)
        )

    @final
    def inner(self, natural: Natural, expectation: Expectation) -> Tensor:
        """⟨λ, μ⟩ for each member of the batch."""
        return inner(natural, expectation, self.space.event_dims)

    @final
    def valid(self, natural: Natural) -> Tensor:
        """Whether each member of the batch has λ ∈ Ω, where A is finite."""
        return self.space.contains(natural)

    @final
    def check(self, natural: Natural) -> Natural:
        """Return λ unchanged if its blocks fit this family and λ ∈ Ω; otherwise raise ``InvalidArgument``."""
        self.space.check(natural, self.sizes, type(self).__name__)
        return natural

    @final
    def random_natural(
        self, noise: NoiseSource, like: Tensor, batch_shape: tuple[int, ...] = (), **sizes: int
    ) -> Natural:
        """A well-conditioned random λ with the dtype and device of ``like``: for tests and random starts."""
        return self.space.random(noise, like, batch_shape, {**sizes, **self.sizes})
