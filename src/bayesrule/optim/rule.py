"""What an algorithm owes: pure functions of a mean, a state and a message, over any leading batch dimensions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule.curvature import Tapped
from bayesrule.errors import InvalidArgument
from bayesrule.posteriors import CovarianceOperator, GaussianPosterior, Part, Posterior

Number = float | Tensor
"""A hyper-parameter: one number, or one for each of many models, shaped to broadcast against their events."""


@dataclass(frozen=True)
class Message:
    """What the data say about one group: all that data-parallel workers have to average.

    Attributes:
        gradient: Of the mean negative log-likelihood of an example, at the drawn weights, shaped as the event.
        curvature: Means over examples, by name, as `Rule.curvature` makes them, which an update may write over; None
            where none was gathered.
    """

    gradient: Tensor
    curvature: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class PriorTerm:
    """A Gaussian prior in units of one example.

    Attributes:
        damping: ``γ = λ/(Nη)``: the KL's weight and the prior's precision, over the size of the data set.
        mean: The prior's centre; None for zero.
    """

    damping: Tensor
    mean: Tensor | None = None

    def pull(self, gradient: Tensor, mean: Tensor, times: Number | None = None) -> Tensor:
        """``∇NLL − (λ/N) E_q[∇ log p(w)] = ∇NLL + γ (μ − m₀)``; of a multiple of ∇NLL, as many ``times`` it.

        In closed form: the printed algorithms take it at the draw, which has the same expectation and more variance.
        """
        centred = mean if self.mean is None else mean - self.mean
        if isinstance(times, float) and is_plain(self.damping):
            return torch.add(gradient, centred, alpha=self.damping.item() * times)
        damping = self.damping if times is None else (self.damping * times).to(self.damping.dtype)
        return torch.addcmul(gradient, centred, damping)


@dataclass(frozen=True)
class State(ABC):
    """What every algorithm keeps.

    Attributes:
        steps: Updates so far; a number on the device where steps are captured.
        estimates: Curvature messages among them, likewise.
        limited: How many steps the guard has shortened.
    """

    steps: int | Tensor
    estimates: int | Tensor
    limited: Tensor


Task = tuple[Tensor, Any, Message, PriorTerm]
"""What an update is of: mean, state, message and prior."""


class Rule(ABC):
    """One algorithm: its hyper-parameters, and pure functions of them.

    Means, states and messages may all have the same leading batch dimensions, one entry for each of many models; a
    hyper-parameter that differs between the models is then a tensor that broadcasts against their events.
    """

    joint: ClassVar[bool] = False
    """Whether one group holds all layers; else each layer is a group."""
    spherical: ClassVar[bool] = True
    """Whether the prior must have one precision for a whole group."""
    from_draws: ClassVar[bool] = False
    """Whether its curvature is made of the loss's gradients at draws (see `price`)."""
    inverts: ClassVar[bool] = True
    """Whether a refresh computes inverses; where not, a refresh is a step like others."""
    warm_up: bool
    """Whether the mean is used for a draw until there is curvature, and the first curvatures are averaged evenly."""

    @property
    def taps(self) -> bool:
        """Whether it needs what a tap sees."""
        return True

    @abstractmethod
    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> Any:
        """The state before any data, whose posterior has the prior's covariance.

        Args:
            mean: Of the group.
            shapes: Fan-in and fan-out of its layers.
            damping: γ.
        """

    @abstractmethod
    def curvature(self, state: Any, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """The curvature part of a message, a mean over the examples of a pass, from what the group's layers saw."""

    @abstractmethod
    def covariance(self, state: Any, damping: Tensor, scale: Number) -> CovarianceOperator:
        """Σ of the posterior; ``scale`` is ``λ/N``."""

    def deviation(self, state: Any, noise: Tensor, damping: Tensor) -> Tensor:
        """``R ε``, ``R Rᵀ = Σ N/λ``: what a draw adds to the mean, over √(λ/N); some rules have a cheaper product."""
        return self.covariance(state, damping, 1.0).sqrt_matmul(noise)

    def deviations(self, states: Sequence[Any], noises: Sequence[Tensor], priors: Sequence[PriorTerm]) -> list[Tensor]:
        """`deviation` for several groups."""
        parts = zip(states, noises, priors, strict=True)
        return [self.deviation(state, noise, prior.damping) for state, noise, prior in parts]

    def posterior(
        self, mean: Tensor, state: Any, damping: Tensor, scale: Number, parts: tuple[Part, ...] = ()
    ) -> Posterior:
        """``N(μ, Σ)``."""
        return GaussianPosterior(mean, self.covariance(state, damping, scale), parts)

    @abstractmethod
    def update(
        self, mean: Tensor, state: Any, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, Any]:
        """One step: the new mean and state. ``refresh``: whether inverses are computed anew."""

    def updates(self, tasks: Sequence[Task], *, lr: Number, refresh: bool) -> list[tuple[Tensor, Any]]:
        """`update` for several groups; a rule may do for all at once what costs more to call than to compute."""
        return [self.update(*task, lr=lr, refresh=refresh) for task in tasks]


def is_plain(tensor: Tensor) -> bool:
    """Whether it is one number that lies where Python does, which works faster with such ones."""
    return tensor.ndim == 0 and tensor.device.type == "cpu"


def ema_rate(state: State, rate: float, warm_up: bool) -> Number:
    """The weight of the newest estimate: ``β``, or, where averaging starts evenly, 1/k for the k-th if larger."""
    if warm_up and isinstance(state.estimates, Tensor):
        return (1 / (state.estimates + 1)).clamp_min(rate)
    return max(rate, 1 / (state.estimates + 1)) if warm_up else rate


def averaged(old: Tensor, message: Message, name: str, rate: Number) -> Tensor:
    """``(1 − β) old + β new``, or ``old`` where the message has no curvature."""
    rate = rate.to(old.dtype) if isinstance(rate, Tensor) else rate
    return old if message.curvature is None else torch.lerp(old, message.curvature[name].to(old), rate)


def guarded(lr: Number, length: Tensor, event_dim: int, max_kl: float | None, limited: Tensor) -> tuple[Number, Tensor]:
    """The step size within a trust region, and the count of limited steps.

    A step ``α p`` may move the predictions by at most ``½ α² pᵀ(F + γ)p ≤ max_kl`` nats an example (in the quadratic
    model), else it is shortened to that; ``length`` is ``pᵀ(F + γ)p``.
    """
    if max_kl is None:
        return lr, limited
    if is_plain(length) and not isinstance(lr, Tensor):
        over = length.item() * lr**2 / (2 * max_kl)
        return (lr / math.sqrt(over), limited + 1) if over > 1 else (lr, limited)
    excess = length.reshape(*length.shape, *(1,) * event_dim) * (lr**2 / (2 * max_kl))
    return excess.clamp_min(1.0).rsqrt() * lr, limited + (excess > 1).reshape(limited.shape)


def moved(mean: Tensor, step: Tensor, lr: Number) -> Tensor:
    """``μ − α p``, in the memory of p: none that the last operations have not touched."""
    if isinstance(lr, Tensor):
        return torch.addcmul(mean, step, lr, value=-1, out=step)
    return torch.sub(mean, step, alpha=lr, out=step)


def inner(left: Tensor, right: Tensor, event_dim: int) -> Tensor:
    """``Σ left · right`` over the event."""
    if event_dim == 2 and not left.is_contiguous() and left.mT.is_contiguous() and right.mT.is_contiguous():
        left, right = left.mT, right.mT  # as layers' weights lie in memory: a sum over them then copies neither
    return torch.linalg.vecdot(left.flatten(-event_dim), right.flatten(-event_dim))


def no_count(mean: Tensor, event_dim: int) -> Tensor:
    """A count of zero for each model of a batch."""
    return torch.zeros(mean.shape[: mean.ndim - event_dim], dtype=torch.int64, device=mean.device)


def check_rate(name: str, value: object) -> None:
    """Refuse what is no weight of an average."""
    if not isinstance(value, Real) or not 0 < float(value) <= 1:
        raise InvalidArgument(f"{name} lies in (0, 1]", got=repr(value))


def check_decay(name: str, value: object) -> None:
    """Refuse what is no share of the past."""
    if not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise InvalidArgument(f"{name} lies in [0, 1)", got=repr(value))


def check_not_negative(**values: object) -> None:
    """Refuse negative hyper-parameters; None means none."""
    for name, value in values.items():
        if value is not None and (not isinstance(value, Real | Tensor) or not float(value) >= 0):
            raise InvalidArgument(f"{name} is a number, and must not be negative", got=repr(value))
