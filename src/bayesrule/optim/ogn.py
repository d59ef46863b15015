"""Online Gauss–Newton: Newton steps at the mean, with squared gradients of examples as curvature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule.curvature import Fisher, Tapped, squared_gradients
from bayesrule.optim.diagonal_newton import (
    Averaged,
    DiagonalNewtonRule,
    DiagonalNewtonState,
    Directed,
    bias,
    leave_out,
)
from bayesrule.optim.rule import Message, PriorTerm, averaged, ema_rate
from bayesrule.optim.shell import PosteriorOptimizer


@dataclass(frozen=True)
class GaussNewtonRule(DiagonalNewtonRule):
    """Curvature from squares of each example's gradient, averaged; momentum of the gradient with the prior's pull."""

    def curvature(self, state: DiagonalNewtonState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """``E[(∇ℓ_i)²]`` over examples   [Eq. 45]."""
        (layer,) = tapped
        return {"squares": squared_gradients(layer)}

    def averaged_curvature(self, state: DiagonalNewtonState, message: Message, damping: Tensor) -> Averaged:
        """``h ← β₂h + (1−β₂) E[(∇ℓ_i)²]``."""
        rate = ema_rate(state, 1 - self.betas[1], self.warm_up)
        curvature = averaged(state.curvature, message, "squares", rate)
        return Averaged(curvature, curvature + damping)

    def direction(self, state: DiagonalNewtonState, message: Message, prior: PriorTerm, mean: Tensor) -> Directed:
        """``m ← β₁m + (1−β₁)(g + γ(μ − m₀))``, and ``m/(1−β₁ᵏ)``   [Osawa et al. 2019, Algorithm 1]."""
        momentum = torch.lerp(state.momentum, prior.pull(message.gradient, mean), 1 - self.betas[0])
        return Directed(momentum, momentum, bias(self.betas[0], state.steps + 1))


@dataclass(frozen=True)
class OGNRule(GaussNewtonRule):
    """Eq. 44 with Eq. 45: gradients at the mean (the delta method)."""

    def deviation(self, state: DiagonalNewtonState, noise: Tensor, damping: Tensor) -> Tensor:
        """None in training; predictions are at draws of the posterior all the same."""
        return torch.zeros_like(noise)


class GaussNewtonOptimizer(PosteriorOptimizer):
    """The constructor that `OGN` and `VOGN` share; they differ in where gradients are taken."""

    rule_type: ClassVar[type[GaussNewtonRule]]

    def __init__(
        self,
        model: nn.Module,
        *,
        n_data: int,
        lr: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        extra_damping: float = 0.0,
        max_kl: float | None = 0.01,
        warm_up: bool = True,
        fisher: Fisher = "empirical",
        **options: Any,
    ) -> None:
        rule = self.rule_type(betas, extra_damping, max_kl, warm_up)
        super().__init__(model, rule, n_data=n_data, lr=lr, fisher=fisher, **options)


class OGN(GaussNewtonOptimizer):
    """Online Gauss–Newton: ``μ ← μ − α m̂/(h + γ)`` with gradients *at the mean*, and ``N(μ, (λ/N) diag(h + γ)⁻¹)``.

    A Laplace approximation that is kept while training goes on; `VOGN` without the delta method is the variational
    one. Adam without the root, and with squares of every example's gradient instead of the batch's.

    Args:
        model: The network.
        n_data: N, the number of training examples.
        lr: Step size α.
        betas: Decay of the momentum and of the curvature.
        extra_damping: Added to γ in the mean's step alone.
        max_kl: The guard on the step, see `bayesrule.optim.rule.guarded`; None for none.
        warm_up: Average the first curvatures evenly, instead of with the prior's.
        fisher: Whose gradients are squared: of the loss (``"empirical"``, as published), or of targets of the model
            (``"sampled"``, ``"exact"``), which is OGGN.
        **options: Those of `PosteriorOptimizer`, without ``noise`` and ``mirrored``.
    """

    rule_type = OGNRule

    left_out = ("noise", "mirrored")

    def __init__(self, model: nn.Module, *, n_data: int, **options: Any) -> None:
        leave_out("OGN", options, self.left_out, "takes its gradients at the mean, without noise")
        super().__init__(model, n_data=n_data, **options)
