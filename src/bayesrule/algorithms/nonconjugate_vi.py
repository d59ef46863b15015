"""Non-conjugate variational inference: exponential families or mixtures of them, no approximation   (Sec. 5.4)."""

from __future__ import annotations

from collections.abc import Iterator

from bayesrule.algorithms.multimodal import multimodal
from bayesrule.algorithms.vmp import ExpectedLoss
from bayesrule.expfam import (
    FixedWeightsMixture,
    GaussHermite,
    Hessian,
    Loss,
    Natural,
    Schedule,
    gradients_in_expectation,
    learning_rule,
)


def nonconjugate_vi(
    families: learning_rule.Families,
    expected_loss: ExpectedLoss,
    naturals: learning_rule.Naturals,
    step_size: Schedule | float,
) -> Iterator[dict[str, Natural]]:
    """λ ← (1−ρ)λ + ρ Σ_i ∇_μ E_q[log f_i], all nodes at once   (Eq. 58); steps that would leave Ω are shortened."""
    return learning_rule.iterates(
        families,
        naturals,
        lambda t, current: gradients_in_expectation(families, expected_loss, current),
        step_size,
        line_search=True,
    )


def nonconjugate_mixture_vi(
    loss: Loss, mixture: FixedWeightsMixture, natural: Natural, step_size: Schedule | float, *, order: int = 40
) -> Iterator[Natural]:
    """The same for a mixture of Gaussians, with the expectations of Eqs. 29 and 30 by quadrature of that order."""
    return multimodal(loss, mixture, natural, step_size, where=GaussHermite(order), curvature=Hessian())
