"""BayesBiNN: Bernoulli weights, gradients by the Concrete relaxation, minibatches   (Sec. 4.5)."""

from __future__ import annotations

from collections.abc import Iterator

from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.descent import Losses
from bayesrule.expfam import Bernoulli, Natural, Schedule, concrete_gradient, learning_rule
from bayesrule.random import NoiseSource


def bayesbinn(
    losses: Losses,
    start: Float[Tensor, " dim"],
    step_size: Schedule | float,
    *,
    temperature: float,
    noise: NoiseSource | None = None,
) -> Iterator[Float[Tensor, " dim"]]:
    """λ ← (1−ρ)λ − ρ s∘∇ℓ(θ), θ = tanh((λ + δ(ε))/τ)   (Eq. 52)."""

    def gradients(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        return {"q": concrete_gradient(Bernoulli(), naturals["q"], losses(t), temperature, noise)}

    steps = learning_rule.iterates({"q": Bernoulli()}, {"q": Natural(linear=start)}, gradients, step_size)
    return (naturals["q"]["linear"] for naturals in steps)
