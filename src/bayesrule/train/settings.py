"""The choices behind the default model of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from numbers import Real

from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Estimator, LocalReparam, Mean
from bayesrule.posteriors import Family, KTied
from bayesrule.priors import GroupARD, Prior
from bayesrule.train.whole_numbers import whole


@dataclass(frozen=True)
class Settings:
    """Choices that were made on validation data once and are meant to be left alone.

    Attributes:
        hidden: Widths of the hidden layers.
        posterior: Family of the weights.
        prior: Of the weights; by default each input of a layer has its own learned scale.
        estimator: How noise enters training; local noise by default, and draws of the weights for families without.
            `Mean` makes a penalised point estimate, calibrated like the rest.
        temperatures: Of the KL, one kind of member each; the data decide their shares.
        folds: Members of each kind; each trains without one fold, which stops and calibrates it.
        components: Of the Gaussian mixture that is a regression's noise.
        steps: Training steps; by default 1,500 below 2,000 rows, else 4,000 or more.
        learning_rate: Adam's, at its peak.
        first_snapshot: Part of training after which a member's best state on its own fold counts; 1: the last state.
        draws: Of the weights at prediction, over all members.
        deterministic: Point estimates in place of posteriors: the same networks without noise, KL and calibration.
        seed: Of everything random.
    """

    hidden: tuple[int, ...] = (64, 64)
    posterior: Family = field(default_factory=lambda: KTied(2, init_std=0.02))
    prior: Prior = field(default_factory=lambda: GroupARD("row"))
    estimator: Estimator = field(default_factory=LocalReparam)
    temperatures: tuple[float, ...] = (0.1, 0.01)
    folds: int = 5
    components: int = 3
    steps: int | None = None
    learning_rate: float = 0.01
    first_snapshot: float = 0.2
    draws: int = 160
    deterministic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("folds", 2), ("components", 1), ("draws", 1), ("seed", 0)):
            whole(name, getattr(self, name), low)
        if self.steps is not None:
            whole("steps", self.steps, 1)
        for width in self.hidden:
            whole("the width of a hidden layer", width, 1)
        scales = {name: [getattr(self, name)] for name in ("learning_rate", "first_snapshot")}
        scales["temperatures"] = [*self.temperatures]
        for name, values in scales.items():
            if not values or not all(isinstance(value, Real) and 0 <= float(value) < math.inf for value in values):
                raise InvalidArgument(f"{name} must be finite and not negative", got=getattr(self, name))
        for name, kind in (("posterior", Family), ("prior", Prior), ("estimator", Estimator), ("deterministic", bool)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidArgument(f"{name} must be a {kind.__name__}", got=repr(getattr(self, name)))

    @property
    def noiseless(self) -> bool:
        """Whether the networks are used at the mean, in training and after."""
        return self.deterministic or isinstance(self.estimator, Mean)

    @property
    def size(self) -> int:
        """How many members."""
        return self.folds * len(self.temperatures)

    def for_rows(self, rows: int) -> Settings:
        """The same with folds of at least two rows each."""
        return replace(self, folds=max(2, min(self.folds, rows // 2)))


def point_estimate(settings: Settings) -> Settings:
    """The same network as a single point estimate, stopped early on one fold."""
    return replace(settings, temperatures=(0.0,), deterministic=True)
