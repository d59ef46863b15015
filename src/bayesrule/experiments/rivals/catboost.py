"""CatBoost: gradient boosting of a mean and a variance, or of classes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from bayesrule.experiments.rivals.method import Method, Options, class_mixture, normal_mixture
from bayesrule.predict import Predictive


def _common(options: Options) -> dict[str, Any]:
    return {
        "iterations": options.steps, "random_seed": options.seed, "thread_count": 1, "verbose": False,
        "allow_writing_files": False,
    }  # fmt: skip


def _numbers(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    model = (
        import_module("catboost").CatBoostRegressor(loss_function="RMSEWithUncertainty", **_common(options)).fit(x, y)
    )
    mean, variance = model.predict(x_test, prediction_type="RMSEWithUncertainty").T
    return normal_mixture([mean], [np.sqrt(variance)])


def _classes(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    model = import_module("catboost").CatBoostClassifier(loss_function="MultiClass", **_common(options)).fit(x, y)
    return class_mixture([model.predict_proba(x_test)])


CATBOOST = Method("catboost", "default trees", _numbers, _classes, package="catboost", install="catboost")
