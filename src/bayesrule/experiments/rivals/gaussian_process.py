"""A Gaussian process: squared exponential kernel with a length for each feature, and white noise."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from bayesrule.experiments.rivals.method import Method, Options, normal_mixture
from bayesrule.predict import Predictive

MOST_ROWS = 2000
"""Its cost grows with the cube of the rows."""


def _numbers(x: Any, y: Any, x_test: Any, options: Options) -> Predictive:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(np.ones(x.shape[1]), (1e-2, 1e4)) + WhiteKernel(0.1, (1e-6, 1e1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length at its bound: the feature does not matter
        process = GaussianProcessRegressor(kernel, random_state=options.seed).fit(x, y)
        mean, std = process.predict(x_test, return_std=True)
    return normal_mixture([mean], [std])


GAUSSIAN_PROCESS = Method(
    "gp", "scikit-learn, ARD kernel", _numbers, None, "sklearn", "scikit-learn", most_rows=MOST_ROWS
)
