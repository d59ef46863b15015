"""Every likelihood with oracles in numpy: its log density, its mean and its variance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, distributions

from bayesrule.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianGammaNoise,
    GaussianMixture,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)

Array = NDArray[np.float64]
FAILURE_RATE = 1e-6


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def gamma_noise() -> GaussianGammaNoise:
    """Prior Gamma(6, 5), posterior Gamma(6 + 7, 5 + 3)."""
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(5.0))
    likelihood.update(6.0, 14)
    return likelihood


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def categorical_log_prob(f: Array, y: Array) -> Array:
    return stats.multinomial.logpmf(np.eye(f.shape[-1])[y], n=1, p=softmax(f))


def student_log_prob(f: Array, y: Array) -> Array:
    law = stats.multivariate_t(loc=np.zeros(f.shape[-1]), shape=4.0 / 9.0 * np.eye(f.shape[-1]), df=18)
    return law.logpdf(y - f)


def mixture_law(f: Array, components: int) -> distributions.MixtureSameFamily:
    """By hand from the layout: all means, all log standard deviations, all logits, each entry by entry."""
    means, log_stds, logits = torch.from_numpy(f).chunk(3, -1)
    means, stds, logits = (torch.stack(each.split(components, -1), -2) for each in (means, log_stds.exp(), logits))
    return distributions.MixtureSameFamily(distributions.Categorical(logits=logits), distributions.Normal(means, stds))


@dataclass(frozen=True)
class Case:
    """A likelihood with oracles in numpy: log density, mean and variance, from outputs ``f`` and targets ``y``."""

    name: str
    build: Callable[[], Likelihood]
    target_dim: int
    log_prob: Callable[[Array, Array], Array]
    mean: Callable[[Array], Array]
    variance: Callable[[Array], Array]

    def outputs(self, *leading: int) -> Tensor:
        size = self.build().output_size(self.target_dim)
        return torch.randn(*leading, size, dtype=torch.float64)

    def targets(self, *examples: int) -> Tensor:
        """Valid targets, from laws other than the model's."""
        likelihood, shape = self.build(), (*examples, self.target_dim)
        if isinstance(likelihood, Categorical):
            return torch.randint(0, self.target_dim, examples)
        if isinstance(likelihood, Bernoulli):
            return torch.randint(0, 2, shape).double()
        if isinstance(likelihood, Poisson):
            return torch.randint(0, 9, shape).double()
        return torch.randn(shape, dtype=torch.float64)


def std_of(raw: Array) -> Array:
    return 0.01 + softplus(raw)


CASES = (
    Case(
        "gaussian",
        lambda: Gaussian(scalar(0.7)),
        3,
        lambda f, y: stats.norm.logpdf(y, f, 0.7).sum(-1),
        lambda f: f,
        lambda f: np.full_like(f, 0.49),
    ),
    Case(
        "gaussian-one-target",
        lambda: Gaussian(scalar(0.3), learn=True),
        1,
        lambda f, y: stats.norm.logpdf(y, f, 0.3).sum(-1),
        lambda f: f,
        lambda f: np.full_like(f, 0.09),
    ),
    Case(
        "gaussian-learned-per-entry",
        lambda: Gaussian(double(0.5, 2.0), learn=True),
        2,
        lambda f, y: stats.norm.logpdf(y, f, [0.5, 2.0]).sum(-1),
        lambda f: f,
        lambda f: np.broadcast_to([0.25, 4.0], f.shape),
    ),
    Case(
        "gaussian-gamma-noise",
        gamma_noise,
        2,
        lambda f, y: stats.norm.logpdf(y, f, math.sqrt(8 / 13)).sum(-1),
        lambda f: f,
        lambda f: np.full_like(f, 8 / 13),
    ),
    Case(
        "heteroscedastic",
        lambda: HeteroscedasticGaussian(min_std=0.01),
        2,
        lambda f, y: stats.norm.logpdf(y, f[..., :2], std_of(f[..., 2:])).sum(-1),
        lambda f: f[..., :2],
        lambda f: std_of(f[..., 2:]) ** 2,
    ),
    Case(
        "gaussian-mixture",
        GaussianMixture,
        2,
        lambda f, y: mixture_law(f, 3).log_prob(torch.from_numpy(y)).sum(-1).numpy(),
        lambda f: mixture_law(f, 3).mean.numpy(),
        lambda f: mixture_law(f, 3).variance.numpy(),
    ),
    Case(
        "gaussian-mixture-of-one",
        lambda: GaussianMixture(components=1),
        1,
        lambda f, y: stats.norm.logpdf(y[..., 0], f[..., 0], np.exp(f[..., 1])),
        lambda f: f[..., :1],
        lambda f: np.exp(2 * f[..., 1:2]),
    ),
    Case(
        "student-t",
        lambda: StudentT(scalar(9.0), scalar(4.0)),
        3,
        student_log_prob,
        lambda f: f,
        lambda f: np.full_like(f, 0.5),
    ),
    Case(
        "categorical",
        Categorical,
        4,
        categorical_log_prob,
        softmax,
        lambda f: softmax(f) - softmax(f) ** 2,
    ),
    Case(
        "bernoulli",
        Bernoulli,
        3,
        lambda f, y: stats.bernoulli.logpmf(y, sigmoid(f)).sum(-1),
        sigmoid,
        lambda f: sigmoid(f) - sigmoid(f) ** 2,
    ),
    Case(
        "poisson",
        Poisson,
        2,
        lambda f, y: stats.poisson.logpmf(y, np.exp(f)).sum(-1),
        np.exp,
        np.exp,
    ),
)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_equal(actual: Tensor, expected: Array | Tensor | float, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tolerance, atol=tolerance, check_device=False
    )
