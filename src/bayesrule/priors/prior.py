"""A prior: Gaussian, and diagonal once its hyper-parameters are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.linalg import sum_of_squares
from bayesrule.posteriors import GaussianPosterior, Posterior


@dataclass(frozen=True)
class DiagonalNormal:
    """``N(mean, diag(1/precision))`` over an event; both broadcast to its shape."""

    mean: Tensor
    precision: Tensor


class Prior(ABC):
    """Gives, for a posterior, the diagonal normal to compare it with.

    A hyper-parameter is fixed, found in closed form from the posterior itself (empirical Bayes), learned by gradient,
    or read off the posterior at the start; for the last two the caller keeps the tensors of `hyperparameters` and
    hands them back to `given`.
    """

    @abstractmethod
    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """The prior of this posterior's event."""

    def hyperparameters(self, posterior: Posterior) -> dict[str, Tensor]:
        """Tensors for the caller to keep: an `nn.Parameter` is learned by gradient, a plain tensor is constant."""
        return {}

    def numbers(self) -> tuple[float, float] | None:
        """Its mean and its precision, where both are fixed numbers and the same for all entries."""
        return None

    @property
    def sharing(self) -> object:
        """Posteriors whose priors have equal, not None `sharing` settle common scales together through `share`."""
        return None

    def share(self, posteriors: Iterable[Posterior]) -> Prior:
        """The prior for each of several posteriors, after settling what they have in common: nothing by default."""
        return self


def need_gaussian(posterior: Posterior, prior: Prior) -> GaussianPosterior:
    """Refuse posteriors without a covariance."""
    if not isinstance(posterior, GaussianPosterior):
        raise Unsupported(
            f"{type(prior).__name__} is a prior for Gaussian posteriors", got=posterior.structure,
            remedy="Use a Gaussian family, or the prior of that family.",
        )  # fmt: skip
    return posterior


def kept(prior: Prior, hyperparameters: Mapping[str, Tensor], *names: str) -> list[Tensor]:
    """Those of the prior's `hyperparameters`, which the caller was to keep and hand back."""
    missing = [name for name in names if name not in hyperparameters]
    if missing:
        raise InvalidArgument(
            f"{type(prior).__name__} must be handed its hyper-parameters {', '.join(names)}",
            got=sorted(hyperparameters),
            remedy="Keep the tensors of prior.hyperparameters(posterior), from the start on, and pass them with it.",
        )
    return [hyperparameters[name] for name in names]


def expected_squares(posterior: Posterior, centre: Tensor | float = 0.0) -> Tensor:
    """``E[(w − centre)²]`` of every entry: ``M² + s``."""
    return posterior.variance + (posterior.mean - centre).square()


def total_expected_square(posterior: GaussianPosterior, centre: Tensor | float = 0.0) -> Tensor:
    """``Σ E[(w − centre)²]``, by the covariance's own trace: cheaper than the sum of `expected_squares`."""
    one = posterior.mean.new_ones(())
    return posterior.covariance.trace(one) + sum_of_squares(posterior.mean - centre, posterior.event_dim)


def check_positive_scale(name: str, value: float | Tensor) -> Tensor:
    """Refuse a scale that is not positive and finite."""
    tensor = torch.as_tensor(value)
    if not bool(((tensor > 0) & torch.isfinite(tensor)).all()):
        raise InvalidArgument(
            f"{name} must be positive and finite", got=value,
            remedy="Every scale is a standard deviation; for no prior at all use the Point family.",
        )  # fmt: skip
    return tensor


def as_like(value: float | Tensor, like: Tensor) -> Tensor:
    """The value beside another tensor. A number is filled in on the device: a copy would make a GPU wait."""
    if isinstance(value, Tensor):
        return value.to(like)
    return like.new_full((), value)


def check_broadcast(name: str, value: Tensor, event_shape: torch.Size) -> Tensor:
    """Refuse a tensor that does not broadcast to the event."""
    try:
        fits = torch.broadcast_shapes(value.shape, event_shape)[-len(event_shape) :] == event_shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeMismatch(
            f"{name} must broadcast to the weight's fan-in × fan-out shape {tuple(event_shape)}",
            got=tuple(value.shape),
        )
    return value
