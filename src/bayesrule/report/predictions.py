"""Predictions on the test examples beside the truth: classes or numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Integer, Shaped

from bayesrule.errors import InvalidArgument, ShapeMismatch

LOW, HIGH = 0.05, 0.95


def require_length(name: str, got: int, wanted: int) -> None:
    """Refuse what does not fit the examples, classes or columns it belongs to."""
    if got != wanted:
        raise ShapeMismatch(f"There must be as many {name} as what they belong to", got=f"{got} beside {wanted}")


@dataclass(frozen=True)
class Classification:
    """Class probabilities for the test examples, averaged over posterior draws, beside the truth.

    Attributes:
        probs: Rows sum to 1.
        targets: Indices into ``class_names``.
        class_names: One for each column.
        mutual_information: Between class and weights, in nats; None where there is none to tell.
    """

    probs: Float[np.ndarray, "examples classes"]
    targets: Integer[np.ndarray, " examples"]
    class_names: Sequence[str]
    mutual_information: Float[np.ndarray, " examples"] | None = None

    def __post_init__(self) -> None:
        examples, classes = self.probs.shape
        require_length("class names", len(self.class_names), classes)
        require_length("targets", len(self.targets), examples)
        if self.mutual_information is not None:
            require_length("mutual information", len(self.mutual_information), examples)
        if examples == 0 or classes < 2:
            raise InvalidArgument("There must be a test example and two classes", got=f"shape {self.probs.shape}")
        if int(self.targets.min()) < 0 or int(self.targets.max()) >= classes:
            raise InvalidArgument(f"Targets must be class indices from 0 to {classes - 1}", got=self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def confidence(self) -> Float[np.ndarray, " examples"]:
        """``max_c p[c]``."""
        return self.probs.max(1)

    @property
    def predicted(self) -> Integer[np.ndarray, " examples"]:
        """The likeliest class; of tied ones that of lowest index."""
        return self.probs.argmax(1)

    @property
    def correct(self) -> Shaped[np.ndarray, " examples"]:
        """Whether the likeliest class is the true one."""
        return self.predicted == self.targets

    @property
    def entropy(self) -> Float[np.ndarray, " examples"]:
        """``−Σ_c p[c] log p[c]`` in nats."""
        return -(self.probs * np.log(np.where(self.probs > 0, self.probs, 1))).sum(1)

    def finite(self) -> Shaped[np.ndarray, " examples"]:
        """Which examples have a usable prediction."""
        return np.isfinite(self.probs).all(1)

    def only(self, chosen: Shaped[np.ndarray, " examples"]) -> Classification:
        """The chosen examples."""
        information = None if self.mutual_information is None else self.mutual_information[chosen]
        return replace(self, probs=self.probs[chosen], targets=self.targets[chosen], mutual_information=information)


@dataclass(frozen=True)
class Regression:
    """Predicted numbers for the test examples, beside the truth.

    Attributes:
        mean: Of the predictive law.
        epistemic_std: What the posterior draws disagree on.
        aleatoric_std: What each draw expects.
        quantile_levels: Ascending; 0.05 and 0.95 among them. More give a fuller coverage curve.
        quantiles: Of the predictive law, one row for each level.
        targets: The numbers that came.
        target_name: What they are called.
    """

    mean: Float[np.ndarray, " examples"]
    epistemic_std: Float[np.ndarray, " examples"]
    aleatoric_std: Float[np.ndarray, " examples"]
    quantile_levels: Sequence[float]
    quantiles: Float[np.ndarray, "levels examples"]
    targets: Float[np.ndarray, " examples"]
    target_name: str = "target"

    def __post_init__(self) -> None:
        require_length("quantile levels", len(self.quantile_levels), len(self.quantiles))
        if len(self.targets) == 0:
            raise InvalidArgument("There must be a test example", got="none")
        for level in (LOW, HIGH):
            self.quantile(level)

    def __len__(self) -> int:
        return len(self.targets)

    def quantile(self, level: float) -> Float[np.ndarray, " examples"]:
        """The row of one level."""
        near = [row for row, known in enumerate(self.quantile_levels) if abs(known - level) < 1e-6]
        if not near:
            raise InvalidArgument(
                f"The report needs the {100 * level:g} % quantile", got=f"levels {list(self.quantile_levels)}",
                remedy="Ask the prediction for the levels 0.05, 0.1, … 0.95.",
            )  # fmt: skip
        return self.quantiles[near[0]]

    @property
    def std(self) -> Float[np.ndarray, " examples"]:
        """``√(epistemic² + aleatoric²)``."""
        return np.hypot(self.epistemic_std, self.aleatoric_std)

    @property
    def inside(self) -> Shaped[np.ndarray, " examples"]:
        """Whether the target lies in its 90 % interval."""
        return (self.quantile(LOW) <= self.targets) & (self.targets <= self.quantile(HIGH))

    def finite(self) -> Shaped[np.ndarray, " examples"]:
        """Which examples have a usable prediction."""
        columns = [self.mean, self.epistemic_std, self.aleatoric_std, self.targets, *self.quantiles]
        return np.isfinite(np.stack(columns)).all(0)

    def only(self, chosen: Shaped[np.ndarray, " examples"]) -> Regression:
        """The chosen examples."""
        return replace(
            self, mean=self.mean[chosen], epistemic_std=self.epistemic_std[chosen],
            aleatoric_std=self.aleatoric_std[chosen], quantiles=self.quantiles[:, chosen], targets=self.targets[chosen],
        )  # fmt: skip
