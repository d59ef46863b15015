"""The library's default model, and the same networks as point estimates: one of them, and five."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Shaped

from bayesrule.experiments.rivals.method import Method, Options, Task
from bayesrule.predict import Predictive
from bayesrule.train.members import Members, Settings, point_estimate, train_members

ENSEMBLE = 5


def _default(task: Task, x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    from bayesrule.train.sklearn_models import BayesianClassifier, BayesianRegressor

    estimator = BayesianRegressor if task == "regression" else BayesianClassifier
    return estimator(steps=options.steps, random_state=options.seed).fit(x, y).predictive(x_test)


def _point_estimates(count: int, task: Task, x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    """The first ``count`` of five networks, which are trained together, each stopped early on a fold of its own."""
    settings = replace(Settings(), steps=options.steps, seed=options.seed, folds=ENSEMBLE).for_rows(len(x))
    targets, classes = _targets(task, y)
    every, _ = train_members(_features(x), targets, task, point_estimate(settings), outputs=classes)
    chosen = list(every.members)[:count]
    shares = torch.full((len(chosen),), 1 / len(chosen))
    return Members(chosen, every.likelihood, shares, every.settings).predictive(_features(x_test))  # type: ignore[arg-type]


def _features(x: Float64[np.ndarray, "rows features"]) -> torch.Tensor:
    return torch.from_numpy(x).float()


def _targets(task: Task, y: Shaped[np.ndarray, " rows"]) -> tuple[torch.Tensor, int]:
    if task == "regression":
        return torch.from_numpy(y).float().unsqueeze(-1), 1
    return torch.from_numpy(y), int(y.max()) + 1


def _bayesrule_numbers(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    return _default("regression", x, y, x_test, options)


def _bayesrule_classes(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    return _default("classification", x, y, x_test, options)


def _point(count: int, name: str, variant: str) -> Method:
    def numbers(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
        return _point_estimates(count, "regression", x, y, x_test, options)

    def classes(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
        return _point_estimates(count, "classification", x, y, x_test, options)

    return Method(name, variant, numbers, classes)


BAYESRULE = Method(
    "bayesrule", "default", _bayesrule_numbers, _bayesrule_classes, "bayesrule.train.sklearn_models", "scikit-learn"
)
POINT = _point(1, "point", "one network, mixture noise")
DEEP_ENSEMBLE = _point(ENSEMBLE, f"deep-ensemble-{ENSEMBLE}", "the same networks, mixture noise")
