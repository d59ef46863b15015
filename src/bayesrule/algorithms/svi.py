"""Stochastic variational inference: mean-field families, minibatches, local ρ = 1   (Sec. 5.3)."""

from __future__ import annotations

from collections.abc import Sequence

from bayesrule.algorithms.vmp import ExpectedLoss, vmp_sweep
from bayesrule.expfam import Natural, gradients_in_expectation, learning_rule


def svi_step(
    families: learning_rule.Families,
    prior_loss: ExpectedLoss,
    batch_loss: ExpectedLoss,
    naturals: learning_rule.Naturals,
    *,
    local_order: Sequence[str],
    scale: float,
    step_size: float,
) -> dict[str, Natural]:
    """ρ = 1 for the local nodes in turn, then ρ < 1 for the global ones, whose data are scaled up by N/M.

    Args:
        families: Of all nodes.
        prior_loss: −E_q[log p(global)].
        batch_loss: −E_q[log p(y, local | global)] of the minibatch.
        naturals: λ of all nodes.
        local_order: Local nodes in the order of their updates; a name may come again, to iterate.
        scale: N/M.
        step_size: ρ_t of the global nodes.
    """
    current = vmp_sweep(families, batch_loss, naturals, local_order)
    shared = [name for name in naturals if name not in set(local_order)]
    gradients = gradients_in_expectation(families, lambda mu: prior_loss(mu) + scale * batch_loss(mu), current, shared)
    chosen = {name: families[name] for name in shared}
    return current | learning_rule.step(chosen, {name: current[name] for name in shared}, gradients, step_size)
