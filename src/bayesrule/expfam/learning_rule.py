"""The Bayesian learning rule (Khan & Rue): one equation over a tree of exponential families.

To minimise E_q[ℓ(θ)] − H(q) over q = Π_name q_name, each family moves by a natural gradient, which is the plain
gradient in the other coordinates (Eq. 4):

    λ ← λ − ρ·∇_μ (E_q[ℓ] − H(q))  =  (1−ρ)λ − ρ·∇_μ E_q[ℓ + log h]                    [Eqs. 3 and 6]

It is also the mirror-descent step argmin_μ ⟨∇_μ(E_q[ℓ] − H), μ⟩ + KL[q ‖ q_t]/ρ  (Eq. 22).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.coordinates import Expectation, Natural, require_same_names
from bayesrule.expfam.family import ExponentialFamily


def step(
    families: Mapping[str, ExponentialFamily],
    naturals: Mapping[str, Natural],
    loss_gradients: Mapping[str, Natural],
    step_size: float,
) -> dict[str, Natural]:
    """λ ← (1−ρ)λ − ρ·∇_μ E_q[ℓ + log h]   (Eq. 6).

    Args:
        families: The family of each name.
        naturals: λ of each name.
        loss_gradients: ∇_μ E_q[ℓ] of each name, exact or approximated; the step adds the term of log h itself. ℓ is the
            whole loss, −log p(data, θ) for Bayesian inference: a sum over the data, with the prior.
        step_size: ρ > 0; with 1 and a conjugate model the step is Bayes' rule (Eq. 54).

    Returns:
        The new λ of each name, not checked: a large step may leave the family, which ``family.check`` finds.

    >>> from bayesrule.expfam import Gamma
    >>> counts, family = torch.tensor([3.0, 5.0]), Gamma()
    >>> prior = family.from_shape_rate(torch.tensor(2.0), torch.tensor(1.0))
    >>> def expected_loss(mu):  # −E_q[log p(θ) + Σ log Poisson(count; θ)], up to a constant
    ...     return -(family.inner(prior, mu) + counts.sum() * mu["log"] - len(counts) * mu["linear"])
    >>> gradient = gradient_in_expectation(family, expected_loss, prior)
    >>> posterior = step({"rate": family}, {"rate": prior}, {"rate": gradient}, step_size=1.0)
    >>> family.to_shape_rate(posterior["rate"])
    (tensor(10.), tensor(3.))
    """
    require_same_names(naturals, families)
    require_same_names(naturals, loss_gradients)
    if not step_size > 0:
        raise InvalidArgument("the step size ρ must be positive", got=step_size)
    return {
        name: (1 - step_size) * natural - step_size * (loss_gradients[name] + families[name].base.gradient(natural))
        for name, natural in naturals.items()
    }


def gradients_in_expectation(
    families: Mapping[str, ExponentialFamily],
    expected_loss: Callable[[Mapping[str, Expectation]], Tensor],
    naturals: Mapping[str, Natural],
) -> dict[str, Natural]:
    """∇_μ E_q[ℓ] of every name at μ = ∇A(λ), from E_q[ℓ] as a function of all μ, by automatic differentiation.

    For a factor of a graphical model, with ℓ = −log f, it is minus the message (Eq. 58). Several numbers (one for each
    member of a batch) are summed: each member then gets its own gradient.
    """
    expectations = {name: families[name].to_expectation(natural) for name, natural in naturals.items()}
    gradients = torch.func.grad(lambda mu: expected_loss(mu).sum())(expectations)
    return {name: families[name].space.project(Natural(**gradient.blocks)) for name, gradient in gradients.items()}


def gradient_in_expectation(
    family: ExponentialFamily, expected_loss: Callable[[Expectation], Tensor], natural: Natural
) -> Natural:
    """∇_μ f(μ) at μ = ∇A(λ), for one family: a ``Natural``   (Eq. 4, right side)."""
    return gradients_in_expectation({"q": family}, lambda mu: expected_loss(mu["q"]), {"q": natural})["q"]


def natural_gradient(
    family: ExponentialFamily, expected_loss: Callable[[Natural], Tensor], natural: Natural
) -> Natural:
    """F(λ)⁻¹ ∇_λ f(λ) = ∇_μ f(λ(μ)), by the chain rule through μ → λ: no Fisher matrix is formed   (Eq. 4).

    A function of the usual parameters is one of λ:
    ``natural_gradient(family, lambda q: loss(*family.to_mean_precision(q)), natural)``.
    """
    return gradient_in_expectation(family, lambda mu: expected_loss(family.to_natural(mu)), natural)
