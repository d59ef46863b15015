"""Gaussian candidates under the rule: what optimizers from gradient descent to VOGN share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bayesrule.expfam import Curvature, GaussianFamily, Loss, Natural, Schedule, Where, gaussian_gradient, learning_rule
from bayesrule.random import NoiseSource

Losses = Callable[[int], Loss]
"""The loss of step t: always the same, or that of a minibatch (the stochastic approximation of Table 1)."""


def descend(
    family: GaussianFamily,
    natural: Natural,
    losses: Losses,
    where: Where,
    curvature: Curvature,
    step_size: Schedule | float,
    *,
    momentum: Schedule | float = 0.0,
    noise: NoiseSource | None = None,
    line_search: bool = False,
) -> Iterator[Natural]:
    """λ_1, λ_2, … of the rule with ∇_μ E_q[ℓ] from gradients taken ``where`` and a ``curvature``."""

    def gradients(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        return {"q": gaussian_gradient(family, naturals["q"], losses(t), where, curvature, noise)}

    steps = learning_rule.iterates(
        {"q": family}, {"q": natural}, gradients, step_size, momentum=momentum, line_search=line_search
    )
    return (naturals["q"] for naturals in steps)
