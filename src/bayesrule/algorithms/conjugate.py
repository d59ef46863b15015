"""Conjugate Bayes: any exponential family, ρ = 1   (Sec. 5.1)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bayesrule.expfam import Expectation, ExponentialFamily, Natural, gradient_in_expectation, learning_rule


def bayes_rule(family: ExponentialFamily, expected_loss: Callable[[Expectation], Tensor], start: Natural) -> Natural:
    """λ* = λ₀ + Σ_i λ̃_i(y_i): one step from anywhere, since −E_q[log p(y, θ)] is linear in μ   (Eq. 54).

    Args:
        family: Family of the posterior.
        expected_loss: −E_q[log p(y, θ)] as a function of μ, up to a constant.
        start: Any valid λ.
    """
    gradient = gradient_in_expectation(family, expected_loss, start)
    return family.check(learning_rule.step({"q": family}, {"q": start}, {"q": gradient}, 1.0)["q"])
