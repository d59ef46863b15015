"""Open convex sets for one block of a natural parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Domain(ABC):
    """An open convex set of tensors."""

    @property
    @abstractmethod
    def description(self) -> str:
        """How an error message completes "must be …"."""

    @abstractmethod
    def contains(self, value: Tensor, event_dims: int) -> Bool[Tensor, "*batch"]:
        """Whether each member of the batch lies in the set; never for a value that is not finite."""

    @abstractmethod
    def from_normal(self, noise: Tensor) -> Tensor:
        """Turn standard normal noise into well-conditioned points of the set."""


@dataclass(frozen=True)
class Real(Domain):
    """Every finite tensor."""

    description = "finite"

    def contains(self, value: Tensor, event_dims: int) -> Bool[Tensor, "*batch"]:
        """See :class:`Domain`."""
        return _all_entries(value.isfinite(), event_dims)

    def from_normal(self, noise: Tensor) -> Tensor:
        """See :class:`Domain`."""
        return noise


@dataclass(frozen=True)
class Above(Domain):
    """Entries above a bound."""

    bound: float

    @property
    def description(self) -> str:
        """See :class:`Domain`."""
        return f"finite and above {self.bound:g}"

    def contains(self, value: Tensor, event_dims: int) -> Bool[Tensor, "*batch"]:
        """See :class:`Domain`."""
        return _all_entries(value.isfinite() & (value > self.bound), event_dims)

    def from_normal(self, noise: Tensor) -> Tensor:
        """See :class:`Domain`."""
        return self.bound + noise.exp()


@dataclass(frozen=True)
class Below(Domain):
    """Entries below a bound."""

    bound: float

    @property
    def description(self) -> str:
        """See :class:`Domain`."""
        return f"finite and below {self.bound:g}"

    def contains(self, value: Tensor, event_dims: int) -> Bool[Tensor, "*batch"]:
        """See :class:`Domain`."""
        return _all_entries(value.isfinite() & (value < self.bound), event_dims)

    def from_normal(self, noise: Tensor) -> Tensor:
        """See :class:`Domain`."""
        return self.bound - noise.exp()


@dataclass(frozen=True)
class NegativeDefinite(Domain):
    """Symmetric negative definite matrices."""

    description = "a finite, symmetric, negative definite matrix"

    def contains(self, value: Float[Tensor, "*batch dim dim"], event_dims: int) -> Bool[Tensor, "*batch"]:
        """See :class:`Domain`. Symmetric up to √eps of the largest entry: updates leave rounding behind."""
        tolerance = torch.finfo(value.dtype).eps ** 0.5 * value.abs().amax((-2, -1))
        symmetric = (value - value.mT).abs().amax((-2, -1)) <= tolerance
        positive = torch.linalg.cholesky_ex(-value).info == 0
        return _all_entries(value.isfinite(), event_dims) & symmetric & positive

    def from_normal(self, noise: Float[Tensor, "*batch dim dim"]) -> Float[Tensor, "*batch dim dim"]:
        """See :class:`Domain`. −½(I + RRᵀ/dim)."""
        return -0.5 * (torch.eye(noise.shape[-1]).to(noise) + noise @ noise.mT / noise.shape[-1])


def _all_entries(holds: Bool[Tensor, ...], event_dims: int) -> Bool[Tensor, "*batch"]:
    return holds.flatten(holds.ndim - event_dims).all(-1) if event_dims else holds
