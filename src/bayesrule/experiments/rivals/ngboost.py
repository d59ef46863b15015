"""NGBoost: natural gradient boosting of a normal law, or of classes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bayesrule.experiments.rivals.method import Method, Options, class_mixture, normal_mixture
from bayesrule.predict import Predictive

TREES = 500


def _common(options: Options) -> dict[str, Any]:
    return {"n_estimators": options.steps or TREES, "random_state": options.seed, "verbose": False}


def _numbers(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    law = import_module("ngboost").NGBRegressor(**_common(options)).fit(x, y).pred_dist(x_test)
    return normal_mixture([law.params["loc"]], [law.params["scale"]])


def _classes(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    law = import_module("ngboost.distns").k_categorical(int(y.max()) + 1)
    model = import_module("ngboost").NGBClassifier(Dist=law, **_common(options)).fit(x, y)
    return class_mixture([model.predict_proba(x_test)])


NGBOOST = Method("ngboost", "500 trees", _numbers, _classes, package="ngboost", install="ngboost")
