"""A family: the recipe for a trainable posterior, as two pure functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.kernels import Bias, LinkedKL, Piece, StoredParameters
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.posterior import Posterior


class Family(ABC):
    """Unconstrained parameters in, posterior value out.

    ``init`` gives every trainable tensor, the one named ``mean`` among them; ``build`` is a pure function of such
    tensors, so it works under `torch.func` and with leading batch dimensions (many models at once).
    """

    init_std: float = 0.01
    """Where standard deviations start."""
    init_spread: float = 0.1
    """Standard deviation of their logarithms at the start, where they are free."""

    @abstractmethod
    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Unconstrained parameters of a posterior around ``mean``."""

    @abstractmethod
    def build(self, parameters: Mapping[str, Tensor], *, event_dim: int, parts: tuple[Part, ...] = ()) -> Posterior:
        """The posterior these parameters stand for; the trailing ``event_dim`` dimensions of the mean are the event."""

    def linked_divergence(self, stored: StoredParameters, centre: float, precision: float) -> LinkedKL | None:
        """The KL to a normal prior given by numbers, whose gradient meets a layer's; None where there is no such code.

        Args:
            stored: What `init` gave, as a layer keeps it.
            centre: The prior's mean.
            precision: The prior's precision.
        """
        return None

    def piece(self, stored: StoredParameters) -> Piece | None:
        """These as one of a model's many that are drawn and have their KLs found together, where they are few."""
        return None

    def as_bias(self, parameters: tuple[Tensor, ...]) -> Bias | None:
        """The mean and the logarithms of the standard deviations of a vector of independent normal entries.

        Args:
            parameters: What `init` gave.
        """
        return None


def check_matrix(mean: Tensor, family: str) -> tuple[int, int]:
    """Fan-in and fan-out of a mean that a matrix family is asked to take."""
    if mean.ndim != 2:
        raise ShapeMismatch(
            f"{family} is a family over fan-in × fan-out matrices", got=f"a mean of shape {tuple(mean.shape)}",
            remedy="Give biases and other vectors the Diagonal or Point family, other weights their matrix view.",
        )  # fmt: skip
    return mean.shape[0], mean.shape[1]


def check_positive(name: str, value: float) -> None:
    """Refuse a scale that is not a positive, finite number."""
    if not 0 < value < float("inf"):
        raise InvalidArgument(f"{name} must be a positive, finite number", got=value, remedy="Give one such as 1.0.")
