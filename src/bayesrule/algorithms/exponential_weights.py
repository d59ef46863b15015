"""Exponential weights (Hedge): a categorical over experts, losses one after another   (Sec. 5.4, online learning)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam import Categorical, gradient_in_expectation, learning_rule


def exponential_weights(
    losses: Iterable[Float[Tensor, " classes"]], start: Float[Tensor, " classes"], rate: float
) -> Iterator[Float[Tensor, " classes"]]:
    """P ← p∘exp(−η·loss), normalised: argmin_q E_q[loss_t] + KL[q ‖ q_t]/η.

    The rule without the entropy (temperature 0): q_t itself is the prior of the next step.
    """
    family = Categorical()
    natural = family.from_probabilities(start)
    for loss in losses:
        gradient = gradient_in_expectation(family, lambda mu, loss=loss: loss @ family.probabilities(mu), natural)  # type: ignore[misc]
        (natural,) = learning_rule.step({"q": family}, {"q": natural}, {"q": gradient}, rate, temperature=0.0).values()
        yield family.to_probabilities(natural)
