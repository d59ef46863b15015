"""What a method of the comparison is: training rows and test features in, a predictive distribution out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Shaped

from bayesrule.likelihoods import Categorical, GaussianMixture
from bayesrule.predict import Predictive

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Options:
    """What a method may depend on beside the data.

    Attributes:
        seed: Of everything random.
        steps: Training steps, iterations or trees, for a trial; by default the method's own number.
    """

    seed: int = 0
    steps: int | None = None


Fit = Callable[
    [Float64[np.ndarray, "rows features"], Shaped[np.ndarray, " rows"], Float64[np.ndarray, "test features"], Options],
    Predictive,
]
"""``(x_train, y_train, x_test, options)``: features and numbers standardised by the training rows, classes from 0."""


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        name: In the table.
        variant: In a few words.
        regression: How it predicts numbers, if it does.
        classification: How it predicts classes, if it does.
        package: The module it needs beside the library's own dependencies.
        install: What to install for that.
        most_rows: More are beyond it.
    """

    name: str
    variant: str
    regression: Fit | None
    classification: Fit | None
    package: str = ""
    install: str = ""
    most_rows: int | None = None

    def fit(self, task: Task) -> Fit | None:
        """How it does a task, if it does."""
        return self.regression if task == "regression" else self.classification

    def refusal(self, task: Task, rows: int) -> str:
        """Why it cannot be measured; empty if it can, and then its package is imported: that is no part of its time."""
        if self.fit(task) is None:
            return f"it is not for {task}"
        if self.most_rows is not None and rows > self.most_rows:
            return f"{rows:,} training rows are more than the {self.most_rows:,} it is used with"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a package says of its own dependencies
                if self.package:
                    import_module(self.package)
        except ImportError as error:
            return f"the package {self.install} is not installed ({error})"
        return ""


def normal_mixture(
    means: Sequence[Shaped[np.ndarray, " test"]], stds: Sequence[Shaped[np.ndarray, " test"]]
) -> Predictive:
    """The equal mixture of normal predictions, one for each member."""
    mean, std = (torch.as_tensor(np.asarray(part, dtype=np.float64)) for part in (means, stds))
    outputs = torch.stack([mean, std.log(), torch.zeros_like(mean)], -1)
    return Predictive(outputs, GaussianMixture(1))


def class_mixture(probs: Sequence[Shaped[np.ndarray, "test classes"]]) -> Predictive:
    """The equal mixture of class probabilities, one table for each member."""
    table: Any = torch.as_tensor(np.asarray(probs, dtype=np.float64))
    smallest = torch.finfo(torch.float64).tiny  # a probability that was rounded to zero keeps a finite logarithm
    return Predictive(table.clamp_min(smallest).log(), Categorical())
