"""Dropout: a spike-and-slab mixture of Gaussians, the delta method, known responsibilities   (Sec. 4.3, App. G)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.adaptive import Scaled, scaled_step
from bayesrule.algorithms.descent import Losses
from bayesrule.expfam import GaussianDiagonal, GaussianFixed, Loss, Natural, learning_rule, of_function

Vector = Float[Tensor, " dim"]
Masks = Callable[[int], Vector]
"""z of step t, one entry for each weight: 0 where the weight's unit is dropped."""


def masked(loss: Loss, mask: Vector) -> Loss:
    """M ↦ ℓ(z∘m): the loss at the draw θ̃ = z∘m of the mixture without its Gaussian noise   (Eq. 84)."""
    return of_function(lambda mean: loss(mask * mean))


def dropout_sgd(losses: Losses, masks: Masks, start: Vector, *, keep: float, step_size: float) -> Iterator[Vector]:
    """θ ← θ − ρ∇ℓ(θ̃)/π₁: Eq. 42 with S = I; SGD with dropout (Eq. 40) has the rate α = ρ/π₁."""
    family = GaussianFixed(torch.eye(len(start)).to(start))

    def gradients(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        mean = family.to_mean(naturals["q"])
        return {"q": Natural(linear=masked(losses(t), masks(t)).gradient(mean) / keep)}

    steps = learning_rule.iterates({"q": family}, {"q": family.from_mean(start)}, gradients, step_size)
    return (family.to_mean(naturals["q"]) for naturals in steps)


def dropout_newton(
    losses: Losses, masks: Masks, start: Vector, *, keep: float, step_size: float, precision: float = 1.0
) -> Iterator[tuple[Vector, Vector]]:
    """θ ← θ − ρ∇ℓ(θ̃)/(π₁s) with s ← (1−ρ)s + ρ diag ∇²ℓ(θ̃)/π₁, diagonal   (Eqs. 42 and 43).

    The slab is far from the spike, so its own responsibility is 1 and ∇_μ H = −λ (Eqs. 85, 86): the mixture's update is
    that of one Gaussian, with the loss's part divided by π₁ (Eqs. 82, 83).
    """
    family = GaussianDiagonal()

    def gradients(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        loss, mean = masked(losses(t), masks(t)), family.mean(naturals["q"])
        return {"q": family.bonnet_price(naturals["q"], loss.gradient(mean) / keep, loss.hessian(mean) / keep)}

    first = family.from_mean_precision(start, torch.full_like(start, precision))
    steps = learning_rule.iterates({"q": family}, {"q": first}, gradients, step_size)
    return (family.to_mean_precision(naturals["q"]) for naturals in steps)


def dropout_rmsprop(
    losses: Losses, masks: Masks, start: Vector, *, keep: float, lr: float, alpha: float = 0.99, eps: float = 1e-8
) -> Iterator[Vector]:
    """RMSprop at dropped-out weights: squared gradients for the Hessian of Eq. 43, and the square root."""
    state = Scaled(start, torch.zeros_like(start), torch.zeros_like(start))
    for t in itertools.count():
        gradient = masked(losses(t), masks(t)).gradient(state.mean)
        state = scaled_step(
            state,
            gradient / keep,
            gradient.square(),
            scale_rate=1 - alpha,
            step_size=lr * keep,
            momentum=0.0,
            precision=lambda scale: scale.sqrt() + eps,
        )
        yield state.mean
