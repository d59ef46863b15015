"""Variational message passing: mean-field exponential families, ρ = 1 for one node after another   (Sec. 5.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from torch import Tensor

from bayesrule.expfam import Expectation, Natural, gradients_in_expectation, learning_rule

ExpectedLoss = Callable[[Mapping[str, Expectation]], Tensor]


def vmp_sweep(
    families: learning_rule.Families,
    expected_loss: ExpectedLoss,
    naturals: learning_rule.Naturals,
    order: Iterable[str],
    step_size: float = 1.0,
) -> dict[str, Natural]:
    """λ_name ← Σ of the messages ∇_μ E_q[log f], one name after another; the gradient is the message   (Eq. 58)."""
    current = dict(naturals)
    for name in order:
        gradients = gradients_in_expectation(families, expected_loss, current, [name])
        current |= learning_rule.step({name: families[name]}, {name: current[name]}, gradients, step_size)
    return current
