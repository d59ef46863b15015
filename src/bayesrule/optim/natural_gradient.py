"""Noisy natural gradient: what K-FAC, EK-FAC, the full and the block-tridiagonal posterior have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule.optim.rule import (
    Message,
    Number,
    PriorTerm,
    Rule,
    State,
    Task,
    check_decay,
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
        check_decay("momentum", self.momentum)
        check_not_negative(extra_damping=self.extra_damping, max_kl=self.max_kl)

    @abstractmethod
    def absorb(self, state: Any, message: Message, damping: Tensor, rate: Number, *, refresh: bool) -> Any:
        """``F ← (1−β)F + β F_batch``, and at a refresh what draws and steps need of its inverse."""

    @abstractmethod
    def solve(self, state: Any, x: Tensor, damping: Tensor) -> Tensor:
        """``(F + γ)⁻¹ x``, as of the last refresh."""

    def update(
        self, mean: Tensor, state: Any, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, Any]:
        """``F ← (1−β̃)F + β̃ ggᵀ``, then ``μ ← μ − α̃ (F + γ)⁻¹ [∇NLL + γ(μ − m₀)]``   [Eq. 9], within the guard."""
        proposed = self._proposed(mean, state, message, prior, refresh)
        lr, limited = guarded(lr, proposed.length, self.event_dim, self.max_kl, state.limited)
        return proposed.accepted(mean, message, lr, limited)

    def updates(self, tasks: Sequence[Task], *, lr: Number, refresh: bool) -> list[tuple[Tensor, Any]]:
        """The same; the guard of all groups in one go."""
        if self.max_kl is None or isinstance(lr, Tensor) or any(state.limited.ndim for _, state, _, _ in tasks):
            return super().updates(tasks, lr=lr, refresh=refresh)
        proposed = [self._proposed(*task, refresh) for task in tasks]
        counts = torch.stack([state.limited for _, state, _, _ in tasks])
        rates, limited = guarded(lr, torch.stack([each.length for each in proposed]), 0, self.max_kl, counts)
        return [
            each.accepted(mean, message, rate, count)
            for (mean, _, message, _), each, rate, count in zip(
                tasks, proposed, torch.as_tensor(rates), limited, strict=True
            )
        ]

    def _proposed(self, mean: Tensor, state: Any, message: Message, prior: PriorTerm, refresh: bool) -> _Proposed:
        """The step before the guard."""
        state = self.absorb(state, message, prior.damping, ema_rate(state, self.beta, self.warm_up), refresh=refresh)
        momentum = prior.pull(message.gradient, mean)
        if self.momentum:
            momentum = momentum + self.momentum * state.momentum
        damping = prior.damping + self.extra_damping if self.extra_damping else prior.damping
        step = self.solve(state, momentum, damping)
        return _Proposed(state, momentum, step, inner(step, momentum, self.event_dim))


@dataclass(frozen=True)
class _Proposed:
    """A state with its new curvature, the gradient with momentum p, the step ``(F + γ)⁻¹p``, and their product."""

    state: Any
    momentum: Tensor
    step: Tensor
    length: Tensor

    def accepted(self, mean: Tensor, message: Message, lr: Number, limited: Tensor) -> tuple[Tensor, Any]:
        """The new mean and state."""
        old = self.state
        estimates = old.estimates + (message.curvature is not None)
        new = replace(old, steps=old.steps + 1, estimates=estimates, limited=limited, momentum=self.momentum)
        return moved(mean, self.step, lr), new


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
