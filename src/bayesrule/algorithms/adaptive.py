"""What RMSprop, Adam and their kin share: slow-moving scale vectors, as the rule in two steps   (Sec. 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam import GaussianDiagonal, GaussianFixed, Natural, learning_rule

Vector = Float[Tensor, " dim"]


@dataclass(frozen=True)
class Scaled:
    """A mean, the scale s that the rule averages, and the last displacement in λ."""

    mean: Vector
    scale: Vector
    displacement: Vector


def scaled_step(
    state: Scaled,
    gradient: Vector,
    curvature: Vector,
    *,
    scale_rate: float,
    step_size: float,
    momentum: float,
    precision: Callable[[Vector], Vector],
) -> Scaled:
    """Eq. 37 with one learning rate for s and another for m: the rule once on each.

    s ← (1−β)s + β·curvature is the rule on N(m, diag(s)⁻¹) for a loss whose gradient at m is 0, which leaves m where it
    is. Then m ← m − ρg/p + … is the rule on N(m, diag(p)⁻¹) with p = ``precision(s)`` fixed (√s + ε, say), with the
    momentum of Eq. 80, whose last displacement λ_t − λ_{t−1} was taken in the coordinates of that step   (Eq. 78).

    A scale of exactly 0, with which optimizers begin, is no precision: the rule does not look, and the next one is.
    """
    diagonal = GaussianDiagonal()
    at_minimum = diagonal.bonnet_price(
        Natural(linear=state.mean, quadratic=torch.full_like(state.mean, -0.5)),
        torch.zeros_like(gradient),
        torch.diag(curvature),
    )
    slow = Natural(linear=state.scale * state.mean, quadratic=-0.5 * state.scale)
    (averaged,) = learning_rule.step({"q": diagonal}, {"q": slow}, {"q": at_minimum}, scale_rate).values()
    scale = -2 * averaged["quadratic"]
    fixed = GaussianFixed(torch.diag(precision(scale)))
    before = fixed.from_mean(state.mean)
    (after,) = learning_rule.step(
        {"q": fixed},
        {"q": before},
        {"q": Natural(linear=gradient)},
        step_size,
        momentum=momentum,
        displacements={"q": Natural(linear=state.displacement)},
    ).values()
    return Scaled(fixed.to_mean(after), scale, (after - before)["linear"])
