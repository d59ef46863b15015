"""Online Newton for a diagonal Gaussian: what OGN, VOGN and IVON have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.optim.joining import apart, joined, together
from bayesrule.optim.rule import (
    Message,
    Number,
    PriorTerm,
    Rule,
    State,
    Task,
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

    def deviations(
        self, states: Sequence[DiagonalNewtonState], noises: Sequence[Tensor], priors: Sequence[PriorTerm]
    ) -> list[Tensor]:
        """Those of small groups together, where they are not recorded."""
        found: list[Tensor] = []
        if any(isinstance(state.steps, Tensor) for state in states):
            return super().deviations(states, noises, priors)
        for run in together(noises, [id(prior) for prior in priors]):
            if run.stop == run.start + 1:
                found.append(self.deviation(states[run.start], noises[run.start], priors[run.start].damping))
                continue
            whole, noise = _joined_states(states[run]), joined(noises[run])
            shapes = [each.shape for each in noises[run]]
            found += apart(self.deviation(whole, noise, priors[run.start].damping), shapes)
        return found

    def update(
        self, mean: Tensor, state: DiagonalNewtonState, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, DiagonalNewtonState]:
        """``μ ← μ − α ĝ / (h + γ)`` with the new h   [Eqs. 44 and 46], within the guard."""
        proposed = self._proposed(mean, state, message, prior)
        rate, limited = lr / proposed.divisor, state.limited
        if self.max_kl is not None:
            rate, limited = guarded(rate, inner(proposed.step, proposed.pull, 2), 2, self.max_kl, limited)
        return moved(mean, proposed.step, rate), replace(proposed.state, limited=limited)

    def updates(self, tasks: Sequence[Task], *, lr: Number, refresh: bool) -> list[tuple[Tensor, DiagonalNewtonState]]:
        """The same; small groups together."""
        if isinstance(lr, Tensor):
            return super().updates(tasks, lr=lr, refresh=refresh)
        kinds = [(id(prior), state.steps, state.estimates, message.curvature is None)
                 for _, state, message, prior in tasks]  # fmt: skip
        runs = together([mean for mean, _, _, _ in tasks], kinds)
        return [each for run in runs for each in self._update_together(tasks[run], lr)]

    def _update_together(self, tasks: Sequence[Task], lr: float) -> list[tuple[Tensor, DiagonalNewtonState]]:
        """Groups with one prior and equal counts, each within its own guard."""
        if len(tasks) == 1:  # whose prior may differ from entry to entry, and so needs the event's own shape
            return [self.update(*tasks[0], lr=lr, refresh=True)]
        means, states, messages, priors = zip(*tasks, strict=True)
        mean, shapes = joined(means), [mean.shape for mean in means]
        proposed = self._proposed(mean, _joined_states(states), _joined_messages(messages), priors[0])
        rate, new = lr / proposed.divisor, proposed.state
        whole = inner(proposed.step, proposed.pull, 2)
        if guarded(rate, whole, 2, self.max_kl, new.limited)[0] is rate:  # then so is each group's, a part of the whole
            news, limits = apart(moved(mean, proposed.step, rate), shapes), [state.limited for state in states]
        else:
            steps, pulls = apart(proposed.step, shapes), apart(proposed.pull, shapes)
            lengths = [inner(*pair, 2) for pair in zip(steps, pulls, strict=True)]
            guards = [guarded(rate, length, 2, self.max_kl, state.limited)
                      for length, state in zip(lengths, states, strict=True)]  # fmt: skip
            limits = [limited for _, limited in guards]
            news = [moved(mean, step, own) for mean, step, (own, _) in zip(means, steps, guards, strict=True)]
        kept = zip(news, limits, apart(new.momentum, shapes), apart(new.curvature, shapes), strict=True)
        return [(mean, DiagonalNewtonState(new.steps, new.estimates, limited, momentum, curvature))
                for mean, limited, momentum, curvature in kept]  # fmt: skip

    def _proposed(self, mean: Tensor, state: DiagonalNewtonState, message: Message, prior: PriorTerm) -> _Proposed:
        """The step before the guard."""
        new = self.averaged_curvature(state, message, prior.damping)
        directed = self.direction(state, message, prior, mean)
        estimates = state.estimates + (message.curvature is not None)
        counted = DiagonalNewtonState(state.steps + 1, estimates, state.limited, directed.momentum, new.curvature)
        if not self.extra_damping:
            step = torch.div(directed.gradient, new.precision, out=new.precision)
            return _Proposed(step, directed.gradient, directed.divisor, counted)
        step = directed.gradient / (new.precision + self.extra_damping)
        return _Proposed(step, step * new.precision, directed.divisor, counted)

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
    """h, and ``h + γ``, which may be written over."""

    curvature: Tensor
    precision: Tensor


@dataclass(frozen=True)
class Directed:
    """A new momentum, and the gradient to follow, still to be divided by the bias correction of its average."""

    momentum: Tensor
    gradient: Tensor
    divisor: Number


@dataclass(frozen=True)
class _Proposed:
    """A step p and ``(h + γ)p``, both still to be divided by the bias correction, and the state after it."""

    step: Tensor
    pull: Tensor
    divisor: Number
    state: DiagonalNewtonState


def _joined_states(states: Sequence[DiagonalNewtonState]) -> DiagonalNewtonState:
    first = states[0]
    momentum, curvature = joined([state.momentum for state in states]), joined([state.curvature for state in states])
    return DiagonalNewtonState(first.steps, first.estimates, first.limited, momentum, curvature)


def _joined_messages(messages: Sequence[Message]) -> Message:
    parts = [message.curvature or {} for message in messages]
    curvature = {name: joined([part[name] for part in parts]) for name in parts[0]}
    return Message(joined([message.gradient for message in messages]), curvature or None)


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
