"""Expectation maximisation: an exponential family for z, the delta method for θ, ρ = 1 in turn   (Sec. 5.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayesrule.expfam import Expectation, ExponentialFamily, Natural, gradient_in_expectation, learning_rule


@dataclass(frozen=True)
class CompleteData:
    """p(y, z | θ) = exp(⟨T(y, z), θ⟩ − A(θ)) for all examples, with q(z) for what is not seen   (Eq. 56).

    Attributes:
        latent: Family of q(z); examples are a batch.
        model: Family of (y, z), whose natural parameter is θ.
        statistics: Σ_i E_q[T(y_i, z_i)] as a function of q's μ.
        count: How many examples the sum is over.
    """

    latent: ExponentialFamily
    model: ExponentialFamily
    statistics: Callable[[Expectation], Expectation]
    count: int


def e_step(data: CompleteData, latent: Natural, theta: Natural) -> Natural:
    """The rule with ρ = 1 on q(z), θ at its value by the delta method: q(z) = p(z | y, θ)."""
    gradient = gradient_in_expectation(data.latent, lambda mu: -data.model.inner(theta, data.statistics(mu)), latent)
    return learning_rule.step({"z": data.latent}, {"z": latent}, {"z": gradient}, 1.0)["z"]


def m_step(data: CompleteData, latent: Natural, theta: Natural, step_size: float = 1.0) -> Natural:
    """θ ← ∇A*(mean of E_q[T]), or for ρ < 1 the online form, in the coordinates of μ.

    The stationary point of E_q[−log p(y, z | θ)]/N = A(θ) − ⟨θ, T̄⟩, which the reverse rule reaches with ρ = 1.
    """
    mean = data.statistics(data.latent.to_expectation(latent)) * (1 / data.count)
    now = data.model.to_expectation(theta)
    moved = learning_rule.reverse_step({"θ": now}, {"θ": now - mean}, step_size)["θ"]
    return data.model.to_natural(moved)


def em_step(data: CompleteData, latent: Natural, theta: Natural, step_size: float = 1.0) -> tuple[Natural, Natural]:
    """Both; on minibatches with ρ_t < 1 it is online EM (Cappé & Moulines, 2009)."""
    latent = e_step(data, latent, theta)
    return latent, m_step(data, latent, theta, step_size)
