"""Adam: RMSprop's row with the momentum of the rule and its bias corrections   (Sec. 4.2 and App. F)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.adaptive import Scaled, scaled_step
from bayesrule.algorithms.descent import Losses
from bayesrule.expfam import SquaredGradient


def adam(
    losses: Losses,
    start: Float[Tensor, " dim"],
    *,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> Iterator[Float[Tensor, " dim"]]:
    """θ ← θ − lr·û/(√v̂ + ε), the momentum of Eq. 80 with ρ_t and γ_t that hold the bias corrections   (Eqs. 77, 78).

    Adam averages gradients, u ← βu + (1−β)g, and divides by 1 − βᵗ. In λ its displacement d_t = −lr·u_t/(1 − βᵗ) obeys
    d_{t+1} = −ρ_t g + γ_t d_t with ρ_t = lr(1−β)/(1 − βᵗ⁺¹) and γ_t = β(1 − βᵗ)/(1 − βᵗ⁺¹).
    """
    first, second = betas
    state = Scaled(start, torch.zeros_like(start), torch.zeros_like(start))
    for t in itertools.count():
        loss, corrected = losses(t), 1 - first ** (t + 1)
        squares = SquaredGradient()(loss, state.mean, state.mean).diagonal()
        state = scaled_step(
            state,
            loss.gradient(state.mean),
            squares,
            scale_rate=1 - second,
            step_size=lr * (1 - first) / corrected,
            momentum=first * (1 - first**t) / corrected,
            precision=lambda scale, t=t: (scale / (1 - second ** (t + 1))).sqrt() + eps,  # type: ignore[misc]
        )
        yield state.mean
