"""Straight-through estimator: Bernoulli weights, the delta method, minibatches, no entropy   (Sec. 4.5)."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.descent import Losses
from bayesrule.expfam import Bernoulli, Natural, Schedule, learning_rule, straight_through_gradient


def straight_through(
    losses: Losses, start: Float[Tensor, " dim"], step_size: Schedule | float
) -> Iterator[Float[Tensor, " dim"]]:
    """λ ← λ − α∇ℓ(sign λ): the latent weights of the STE are natural parameters   (Eq. 48).

    BayesBiNN's rule with s ≡ 1, and temperature 0 for the entropy, which drops the decay (1 − ρ)λ.
    """

    def gradients(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        return {"q": straight_through_gradient(naturals["q"], losses(t))}

    steps = learning_rule.iterates(
        {"q": Bernoulli()}, {"q": Natural(linear=start)}, gradients, step_size, temperature=0.0
    )
    return (naturals["q"]["linear"] for naturals in steps)
