"""Five small perceptrons of scikit-learn; for numbers with constant noise, fitted on rows kept back."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from bayesrule.experiments.rivals.method import Method, Options, class_mixture, normal_mixture
from bayesrule.predict import Predictive

MEMBERS, HELD_OUT = 5, 0.1
EPOCHS, STEPS, BATCH = 2000, 10_000, 200
"""At most so many epochs and steps for each member; the batch is scikit-learn's own."""
PATIENCE, TOLERANCE = 50, 1e-6
"""Training goes on until the loss stands still. With ``early_stopping`` or the usual tolerance small sets end far too
soon: validation rows of the training splits said so."""


def _perceptron(kind: type, number: int, rows: int, options: Options) -> Any:
    epochs = min(EPOCHS, -(-STEPS // max(1, rows // BATCH)))
    return kind(
        hidden_layer_sizes=(64, 64), max_iter=options.steps or epochs, tol=TOLERANCE, n_iter_no_change=PATIENCE,
        random_state=options.seed + number,
    )  # fmt: skip


def _numbers(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    """Each member predicts ``N(f_m(x), σ_m²)`` with ``σ_m²`` its mean squared error on the rows kept back."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    order = np.random.RandomState(options.seed).permutation(len(x))
    held_out, train = np.split(order, [max(1, round(HELD_OUT * len(x)))])
    means, stds = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for number in range(MEMBERS):
            member = _perceptron(MLPRegressor, number, len(train), options).fit(x[train], y[train])
            noise = np.sqrt(np.mean((member.predict(x[held_out]) - y[held_out]) ** 2))
            means.append(member.predict(x_test))
            stds.append(np.full(len(x_test), noise))
    return normal_mixture(means, stds)


def _classes(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPClassifier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        members = [_perceptron(MLPClassifier, number, len(x), options).fit(x, y) for number in range(MEMBERS)]
    return class_mixture([member.predict_proba(x_test) for member in members])


MLP_ENSEMBLE = Method(
    f"mlp-ensemble-{MEMBERS}", "scikit-learn, constant noise", _numbers, _classes, "sklearn", "scikit-learn"
)
