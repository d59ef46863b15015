"""The default model as scikit-learn estimators: arrays of numbers in, predictions with their uncertainty out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Estimator
from bayesrule.posteriors import Family
from bayesrule.predict import Predictive
from bayesrule.priors import Prior
from bayesrule.train.loop import TrainingInterrupted
from bayesrule.train.members import Settings, Task, train_members

FEWEST_ROWS = 4
"""Two folds of two rows."""
FARTHEST = 1e6
"""Standardised numbers are clipped here, far outside any sensible data, so that float32 cannot overflow."""
ROWS_AT_ONCE = 4096
RECIPES = ("posterior", "prior", "estimator")


class _BayesianNetwork(BaseEstimator):
    """What both estimators share: their parameters, the standardised features, and the predictive distribution.

    After training the networks are kept in float64, so that a row's prediction does not depend on its neighbours.
    """

    hidden: Sequence[int]
    temperatures: Sequence[float]
    folds: int
    steps: int | None
    draws: int
    random_state: int | np.random.RandomState | None

    @no_type_check  # an estimator keeps whatever it is given, and looks at it when it is fitted
    def __init__(
        self,
        hidden: Sequence[int] = Settings.hidden,
        posterior: Family | None = None,
        prior: Prior | None = None,
        estimator: Estimator | None = None,
        temperatures: Sequence[float] = Settings.temperatures,
        folds: int = Settings.folds,
        steps: int | None = Settings.steps,
        draws: int = Settings.draws,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.hidden = hidden
        self.posterior = posterior
        self.prior = prior
        self.estimator = estimator
        self.temperatures = temperatures
        self.folds = folds
        self.steps = steps
        self.draws = draws
        self.random_state = random_state

    def predictive(self, X: Any) -> Predictive:
        """The predictive distribution of every row; a regression's is of the standardised target."""
        return self.members_.predictive(self._features(X), seed=self.members_.settings.seed)

    def _predictives(self, X: Any) -> Iterator[Predictive]:
        for rows in self._features(X).split(ROWS_AT_ONCE):
            yield self.members_.predictive(rows, seed=self.members_.settings.seed)

    def _train(self, X: Float64[np.ndarray, "rows features"], y: Tensor, task: Task, outputs: int = 1) -> None:
        self._mean, self._scale = _moments(X)
        try:
            members, _ = train_members(self._standardised(X).float(), y, task, self._settings(len(X)), outputs=outputs)
        except TrainingInterrupted as interrupted:  # a search over parameters would take it for a bad candidate
            raise KeyboardInterrupt from interrupted
        self.members_ = members.double()

    def _settings(self, rows: int) -> Settings:
        recipes = {name: given for name in RECIPES if (given := getattr(self, name)) is not None}
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        try:
            settings = Settings(
                hidden=tuple(self.hidden), temperatures=tuple(self.temperatures), folds=self.folds, steps=self.steps,
                draws=self.draws, seed=seed, **recipes,
            )  # fmt: skip
        except TypeError as error:
            raise InvalidArgument("A parameter is not of its type", got=self, remedy=str(error)) from error
        return settings.for_rows(rows)

    def _features(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return self._standardised(validate_data(self, X, dtype=np.float64, reset=False))

    def _standardised(self, X: Float64[np.ndarray, "rows features"]) -> Tensor:
        return torch.from_numpy(np.clip((X - self._mean) / self._scale, -FARTHEST, FARTHEST))


class BayesianClassifier(ClassifierMixin, _BayesianNetwork):
    """Classes, by cross-fitted and calibrated Bayesian perceptrons.

    Args:
        hidden: Widths of the hidden layers.
        posterior: Family of the weights, such as ``br.KTied(2)``; by default that of `Settings`.
        prior: Of the weights; by default that of `Settings`.
        estimator: How noise enters training, such as ``br.Flipout()``; local noise by default.
        temperatures: Of the KL, one kind of member each; the data decide their shares.
        folds: Members of each kind; each trains without one fold, which stops and calibrates it.
        steps: Training steps; by default by the number of rows.
        draws: Of the weights at prediction.
        random_state: Of everything random; a number gives the same model every time.

    Attributes:
        classes_: The labels, in order.
        members_: The trained networks.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = BayesianClassifier(steps=50).fit(X, y)
        >>> model.predict_proba(X[:2]).shape
        (2, 3)
    """

    def fit(self, X: Any, y: Any) -> BayesianClassifier:
        """Train on rows of numbers and their labels."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=FEWEST_ROWS)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InvalidArgument("A classifier needs rows of at least two classes", got=f"one class: {y[0]}")
        self._train(X, torch.from_numpy(codes.astype(np.int64)), "classification", len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "rows classes"]:
        """Probabilities, averaged over draws of the weights; columns as in ``classes_``."""
        return np.concatenate([predictive.probs.numpy() for predictive in self._predictives(X)])

    def predict(self, X: Any) -> Shaped[np.ndarray, " rows"]:
        """The most probable label of each row."""
        most: Int64[np.ndarray, " rows"] = self.predict_proba(X).argmax(1)
        return self.classes_[most]


class BayesianRegressor(RegressorMixin, _BayesianNetwork):
    """Numbers, by cross-fitted and calibrated Bayesian perceptrons with a Gaussian mixture as noise.

    Args:
        hidden: Widths of the hidden layers.
        posterior: Family of the weights, such as ``br.KTied(2)``; by default that of `Settings`.
        prior: Of the weights; by default that of `Settings`.
        estimator: How noise enters training, such as ``br.Flipout()``; local noise by default.
        temperatures: Of the KL, one kind of member each; the data decide their shares.
        folds: Members of each kind; each trains without one fold, which stops and calibrates it.
        steps: Training steps; by default by the number of rows.
        draws: Of the weights at prediction.
        random_state: Of everything random; a number gives the same model every time.

    Attributes:
        members_: The trained networks.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> mean, std = BayesianRegressor(steps=50).fit(X, y).predict(X[:2], return_std=True)
        >>> mean.shape, std.shape
        ((2,), (2,))
    """

    def fit(self, X: Any, y: Any) -> BayesianRegressor:
        """Train on rows of numbers and their targets."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=FEWEST_ROWS)
        y = y.astype(np.float64)
        self._target_mean, self._target_scale = map(float, _moments(y))
        standardised = np.clip((y - self._target_mean) / self._target_scale, -FARTHEST, FARTHEST)
        self._train(X, torch.from_numpy(standardised).float().unsqueeze(-1), "regression")
        return self

    def predict(
        self, X: Any, return_std: bool = False
    ) -> Float64[np.ndarray, " rows"] | tuple[Float64[np.ndarray, " rows"], Float64[np.ndarray, " rows"]]:
        """The predictive mean of each row and, if asked for, its standard deviation (of weights and noise together)."""
        means, stds = [], []
        for predictive in self._predictives(X):
            means.append(predictive.mean.squeeze(-1).numpy())
            if return_std:
                stds.append(predictive.std.squeeze(-1).numpy())
        mean = self._target_mean + self._target_scale * np.concatenate(means)
        return (mean, self._target_scale * np.concatenate(stds)) if return_std else mean

    def predict_quantiles(
        self, X: Any, levels: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> Float64[np.ndarray, "rows levels"]:
        """Quantiles of the predictive distribution of each row, one column for each level."""
        asked = torch.tensor(levels, dtype=torch.float64)
        found = [predictive.quantile(asked).squeeze(-1).mT.numpy() for predictive in self._predictives(X)]
        return self._target_mean + self._target_scale * np.concatenate(found)


def _moments(values: Float64[np.ndarray, "*rows_and_columns"]) -> tuple[Any, Any]:
    """Mean and standard deviation of each column; a deviation of 1 where nothing varies."""
    largest = np.abs(values).max(0)
    unit = np.where(largest > 0, largest, 1.0)  # squares of values near the ends of float64 would leave it
    mean, std = (values / unit).mean(0) * unit, (values / unit).std(0) * unit
    return mean, np.where(std > 1e-12 * largest, std, 1.0)
