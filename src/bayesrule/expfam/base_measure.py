"""The base measure h(θ) of an exponential family, which is 1 for all but the Gaussian with fixed covariance."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from bayesrule.expfam.coordinates import Expectation, Natural


class BaseMeasure(ABC):
    """h(θ), with the two things the learning rule and the entropy need of its expectation."""

    @abstractmethod
    def log_density(self, theta: Tensor) -> Tensor:
        """Log h(θ)."""

    @abstractmethod
    def expected_log_density(self, expectation: Expectation) -> Tensor:
        """E_q[log h(θ)] as a function of μ."""

    @abstractmethod
    def gradient(self, natural: Natural) -> Natural:
        """∇_μ E_q[log h(θ)], the term beside the loss in Eq. 6."""


class UnitBase(BaseMeasure):
    """h ≡ 1: constants such as (2π)^(−d/2) belong to A(λ) instead."""

    def log_density(self, theta: Tensor) -> Tensor:
        """Log 1."""
        return theta.new_zeros(())

    def expected_log_density(self, expectation: Expectation) -> Tensor:
        """Log 1."""
        return expectation.items[0][1].new_zeros(())

    def gradient(self, natural: Natural) -> Natural:
        """0 in every block."""
        return natural.map(lambda value: value.new_zeros(value.shape))


class EntropyWithLoss(BaseMeasure):
    """For a candidate whose entropy comes with the loss, as E_q[ℓ + log q]: the rule then adds none of its own."""

    def log_density(self, theta: Tensor) -> Tensor:
        """Log 1."""
        return theta.new_zeros(())

    def expected_log_density(self, expectation: Expectation) -> Tensor:
        """Log 1."""
        return expectation.items[0][1].new_zeros(())

    def gradient(self, natural: Natural) -> Natural:
        """−λ, with which Eq. 6 becomes λ ← λ − ρ·∇_μ E_q[ℓ]."""
        return -natural
