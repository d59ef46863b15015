"""Non-conjugate variational message passing: VMP's row where E_q[log f] is not linear in μ   (Sec. 5.3 and 5.4)."""

from __future__ import annotations

from collections.abc import Iterable

from bayesrule.algorithms.vmp import ExpectedLoss, vmp_sweep
from bayesrule.expfam import Natural, learning_rule


def nonconjugate_vmp_sweep(
    families: learning_rule.Families,
    expected_loss: ExpectedLoss,
    naturals: learning_rule.Naturals,
    order: Iterable[str],
) -> dict[str, Natural]:
    """λ ← Σ_a F(λ)⁻¹∇_λ E_q[log f_a] = Σ_a ∇_μ E_q[log f_a], ρ = 1 for every node (Knowles & Minka, 2011).

    The same code as for conjugate factors: that a message depends on the receiver's own μ changes nothing in it. It
    need not converge; ``nonconjugate_vi`` damps it.
    """
    return vmp_sweep(families, expected_loss, naturals, order)
