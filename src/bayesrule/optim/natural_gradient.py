"""Noisy natural gradient: what K-FAC, EK-FAC, the full and the block-tridiagonal posterior have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from bayesrule.optim.rule import (
    Message,
    Number,
    PriorTerm,
    Rule,
    State,
    check_not_negative,
    check_rate,
    ema_rate,
    guarded,
    inner,
    moved,
)
from bayesrule.optim.shell import PosteriorOptimizer


@dataclass(frozen=True)
class NaturalState(State):
    """Momentum, and whatever curvature the structure keeps."""

    momentum: Tensor


@dataclass(frozen=True)
class NaturalGradientRule(Rule):
    """Eq. 9, for a structure of the Fisher matrix F that a subclass names; see `NoisyKFAC` for the hyper-parameters."""

    event_dim: ClassVar[int] = 2
    beta: float = 0.001
    momentum: float = 0.0
    extra_damping: float = 0.0
    max_kl: float | None = 0.01
    warm_up: bool = True

    def __post_init__(self) -> None:
        check_rate("beta", self.beta)
        check_not_negative(momentum=self.momentum, extra_damping=self.extra_damping, max_kl=self.max_kl)

    @abstractmethod
    def absorb(self, state: Any, message: Message, damping: Tensor, rate: float, *, refresh: bool) -> Any:
        """``F ← (1−β)F + β F_batch``, and at a refresh what draws and steps need of its inverse."""

    @abstractmethod
    def solve(self, state: Any, x: Tensor, damping: Tensor) -> Tensor:
        """``(F + γ)⁻¹ x``, as of the last refresh."""

    def update(
        self, mean: Tensor, state: Any, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, Any]:
        """``F ← (1−β̃)F + β̃ ggᵀ``, then ``μ ← μ − α̃ (F + γ)⁻¹ [∇NLL + γ(μ − m₀)]``   [Eq. 9], within the guard."""
        state = self.absorb(state, message, prior.damping, ema_rate(state, self.beta, self.warm_up), refresh=refresh)
        momentum = prior.pull(message.gradient, mean)
        if self.momentum:
            momentum = momentum + self.momentum * state.momentum
        step = self.solve(state, momentum, prior.damping + self.extra_damping)
        lr, limited = guarded(lr, inner(step, momentum, self.event_dim), self.event_dim, self.max_kl, state.limited)
        estimates = state.estimates + (message.curvature is not None)
        counted = replace(state, steps=state.steps + 1, estimates=estimates, limited=limited, momentum=momentum)
        return moved(mean, step, lr), counted


class NaturalGradientOptimizer(PosteriorOptimizer):
    """The constructor of the optimizers that follow Eq. 9; each names its rule."""

    rule_type: ClassVar[type[NaturalGradientRule]]

    def __init__(
        self,
        model: nn.Module,
        *,
        n_data: int,
        lr: float = 1e-2,
        beta: float = 0.001,
        momentum: float = 0.0,
        extra_damping: float = 0.0,
        max_kl: float | None = 0.01,
        warm_up: bool = True,
        rule_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        rule = self.rule_type(
            beta=beta, momentum=momentum, extra_damping=extra_damping, max_kl=max_kl, warm_up=warm_up,
            **(rule_options or {}),
        )  # fmt: skip
        super().__init__(model, rule, n_data=n_data, lr=lr, **options)
