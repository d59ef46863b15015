"""Online Newton for a diagonal Gaussian: what OGN, VOGN and IVON have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.optim.rule import (
    Message,
    Number,
    PriorTerm,
    Rule,
    State,
    check_decay,
    check_not_negative,
    guarded,
    inner,
    moved,
    no_count,
)
from bayesrule.posteriors import DiagonalCovariance


@dataclass(frozen=True)
class DiagonalNewtonState(State):
    """Momentum, and the average h of the curvature of one example."""

    momentum: Float[Tensor, "*batch fan_in fan_out"]
    curvature: Float[Tensor, "*batch fan_in fan_out"]


@dataclass(frozen=True)
class DiagonalNewtonRule(Rule):
    """``Σ = (λ/N) diag(h + γ)⁻¹``, and ``μ ← μ − α ĝ / (h + γ)``; a subclass says how h is averaged."""

    spherical = False
    inverts = False
    betas: tuple[float, float] = (0.9, 0.999)
    extra_damping: float = 0.0
    max_kl: float | None = None
    warm_up: bool = False

    def __post_init__(self) -> None:
        check_betas(self.betas)
        check_not_negative(extra_damping=self.extra_damping, max_kl=self.max_kl)

    @abstractmethod
    def averaged_curvature(self, state: DiagonalNewtonState, message: Message, damping: Tensor) -> Averaged:
        """The new h, such that ``h + γ`` is positive."""

    @abstractmethod
    def direction(self, state: DiagonalNewtonState, message: Message, prior: PriorTerm, mean: Tensor) -> Directed:
        """The new momentum, and the gradient that the step divides by the curvature."""

    def covariance(self, state: DiagonalNewtonState, damping: Tensor, scale: Number) -> DiagonalCovariance:
        """``(λ/N) diag(h + γ)⁻¹``."""
        return DiagonalCovariance((scale / (state.curvature + damping)).sqrt())

    def deviation(self, state: DiagonalNewtonState, noise: Tensor, damping: Tensor) -> Tensor:
        """``ε / √(h + γ)``."""
        return (state.curvature + damping).rsqrt_().mul_(noise)

    def update(
        self, mean: Tensor, state: DiagonalNewtonState, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, DiagonalNewtonState]:
        """``μ ← μ − α ĝ / (h + γ)`` with the new h   [Eqs. 44 and 46], within the guard."""
        new = self.averaged_curvature(state, message, prior.damping)
        directed = self.direction(state, message, prior, mean)
        step = directed.gradient / (new.precision + self.extra_damping if self.extra_damping else new.precision)
        rate, limited = lr / directed.divisor, state.limited
        if self.max_kl is not None:
            length = inner(step.square(), new.precision, 2) if self.extra_damping else inner(step, directed.gradient, 2)
            rate, limited = guarded(rate, length, 2, self.max_kl, limited)
        estimates = state.estimates + (message.curvature is not None)
        counted = DiagonalNewtonState(state.steps + 1, estimates, limited, directed.momentum, new.curvature)
        return moved(mean, step, rate), counted

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> DiagonalNewtonState:
        """No momentum, and `start` as curvature."""
        return DiagonalNewtonState(
            0, 0, no_count(mean, 2), torch.zeros_like(mean), torch.full_like(mean, self.start_curvature)
        )

    @property
    def start_curvature(self) -> float:
        """H before any data: by default nothing, so that the posterior has the prior's variance."""
        return 0.0


@dataclass(frozen=True)
class Averaged:
    """h, and ``h + γ``."""

    curvature: Tensor
    precision: Tensor


@dataclass(frozen=True)
class Directed:
    """A new momentum, and the gradient to follow, still to be divided by the bias correction of its average."""

    momentum: Tensor
    gradient: Tensor
    divisor: Number


def check_betas(betas: tuple[float, float]) -> None:
    """Refuse all but two decays in [0, 1)."""
    if not isinstance(betas, Sequence) or isinstance(betas, str) or len(betas) != 2:
        raise InvalidArgument(
            "betas are two decays, of the momentum and of the curvature", got=repr(betas), remedy="Give (0.9, 0.999)."
        )
    for index, beta in enumerate(betas):
        check_decay(f"betas[{index}]", beta)


def bias(beta: float, steps: int | Tensor) -> Number:
    """``1 − βᵏ``: what an average that started at zero is too small by."""
    return 1 - beta**steps


def corrected(average: Tensor, beta: float, steps: int | Tensor) -> Tensor:
    """``m / (1 − βᵏ)``: an average that started at zero, without its bias."""
    return average / bias(beta, steps)


def leave_out(optimizer: str, options: Collection[str], names: Collection[str], why: str) -> None:
    """Refuse keywords that make no sense for one optimizer."""
    given = sorted(set(options) & set(names))
    if given:
        raise InvalidArgument(f"{optimizer} {why}", got=given, remedy=f"Leave out {', '.join(given)}.")
