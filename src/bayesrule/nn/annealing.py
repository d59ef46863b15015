"""How the KL's weight grows during training: pure functions of the step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from bayesrule.errors import InvalidArgument


class Annealing(ABC):
    """The KL's weight, between 0 and 1, at a training step (a batch, counted from 0)."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The weight at a step."""


@dataclass(frozen=True)
class Constant(Annealing):
    """No annealing."""

    weight: float = 1.0

    def __call__(self, step: int) -> float:
        """Always the same."""
        return self.weight


@dataclass(frozen=True)
class LinearPerBatch(Annealing):
    """Grows by ``slope`` a batch, in stairs of ``every`` batches, up to 1   [k-tied Normal, App. D]."""

    slope: float
    every: int = 100

    def __post_init__(self) -> None:
        _check_positive(slope=self.slope, every=self.every)

    def __call__(self, step: int) -> float:
        """``min(1, slope · every · ⌊step / every⌋)``."""
        return min(1.0, self.slope * (step // self.every * self.every))


@dataclass(frozen=True)
class LinearOverEpochs(Annealing):
    """Grows linearly to 1 over the first ``epochs`` epochs, batch by batch."""

    epochs: float
    batches_per_epoch: int

    def __post_init__(self) -> None:
        _check_positive(epochs=self.epochs, batches_per_epoch=self.batches_per_epoch)

    def __call__(self, step: int) -> float:
        """``min(1, step / (epochs · batches_per_epoch))``."""
        return min(1.0, step / (self.epochs * self.batches_per_epoch))


@dataclass(frozen=True)
class Exponential(Annealing):
    """Grows by a constant factor a batch, from ``start`` to 1 in ``steps`` batches."""

    steps: int
    start: float = 1e-4

    def __post_init__(self) -> None:
        _check_positive(steps=self.steps, start=self.start)

    def __call__(self, step: int) -> float:
        """``start^(1 − step/steps)``, at most 1."""
        return self.start ** max(0.0, 1.0 - step / self.steps)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise InvalidArgument(f"{name} must be positive", got=value)
