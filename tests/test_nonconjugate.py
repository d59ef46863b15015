"""Non-conjugate variational inference: the Gaussian it finds minimises the KL, and is near a long run of NUTS."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import islice

import numpy as np
import pytest
import scipy.optimize
import torch

from bayesrule.algorithms import nonconjugate_vi
from bayesrule.experiments.blr.problems import Logistic, Size, logistic
from bayesrule.expfam import GaussianFull
from bayesrule.inference import Likelihood, LogisticLikelihood, PoissonLikelihood, glm

STANDARD = np.linspace(-9, 9, 361)
WEIGHTS = np.exp(-0.5 * STANDARD**2) / np.exp(-0.5 * STANDARD**2).sum()


@cache
def problem() -> Logistic:
    return logistic(Size(200, 1, 0))


def fitted(likelihood: Likelihood, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance by the learning rule."""
    model = glm(problem().x, y, likelihood, prior_precision=1.0)
    start = GaussianFull().from_mean_precision(torch.zeros(3).double(), torch.eye(3).double())
    *_, last = islice(nonconjugate_vi(model.families, model.expected_loss, {"weights": start}, 0.5), 50)
    mean, precision = GaussianFull().to_mean_precision(last["weights"])
    return mean.numpy(), np.linalg.inv(precision.numpy())


def kl_minimiser(expected: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance that minimise −E_q[log p(y, θ)] − H(q), over a Cholesky factor, by scipy.

    Args:
        expected: −E[log p(y_i | f)] of each example from the mean and variance of its f.
    """
    X = problem().x.numpy()
    rows, columns = np.tril_indices(3)

    def unpack(point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        factor = np.zeros((3, 3))
        factor[rows, columns] = point[3:]
        factor[np.diag_indices(3)] = np.exp(np.diag(factor))
        return point[:3], factor

    def objective(point: np.ndarray) -> float:
        mean, factor = unpack(point)
        likelihood = expected(X @ mean, ((X @ factor) ** 2).sum(1)).sum()
        return likelihood + 0.5 * (mean @ mean + (factor**2).sum()) - np.log(np.diag(factor)).sum()

    start = np.concatenate([np.zeros(3), [-1.5, 0.0, -1.5, 0.0, 0.0, -1.5]])
    found = scipy.optimize.minimize(objective, start, method="BFGS", options={"gtol": 1e-5})
    mean, factor = unpack(found.x)
    return mean, factor @ factor.T


def assert_within(got: tuple[np.ndarray, np.ndarray], wanted: tuple[np.ndarray, np.ndarray], share: float) -> None:
    """Means within a share of themselves or of their standard deviation, covariances of their scale."""
    stds = np.sqrt(np.diag(wanted[1]))
    assert np.all(np.abs(got[0] - wanted[0]) <= share * np.maximum(np.abs(wanted[0]), stds))
    assert np.all(np.abs(got[1] - wanted[1]) <= share * np.outer(stds, stds))


def test_logistic_regression_with_200_points() -> None:
    y = problem().y.numpy()

    def expected(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        f = mean[:, None] + np.sqrt(variance)[:, None] * STANDARD
        return np.logaddexp(0, f) @ WEIGHTS - y * mean

    assert_within(fitted(LogisticLikelihood(), problem().y), kl_minimiser(expected), 0.001)


def test_poisson_regression() -> None:
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.exp(problem().x.numpy() @ np.array([0.4, -0.3, 0.2]))).astype(float)

    def expected(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return np.exp(mean + 0.5 * variance) - counts * mean

    assert_within(fitted(PoissonLikelihood(), torch.as_tensor(counts)), kl_minimiser(expected), 0.001)


@pytest.mark.slow
def test_logistic_regression_is_near_a_long_run_of_nuts() -> None:
    """A Gaussian is not the posterior: moments agree to a tenth of the standard deviations, no closer."""
    numpyro = pytest.importorskip("numpyro")
    jax = pytest.importorskip("jax")
    from numpyro.infer import MCMC, NUTS

    x, y = problem().x.numpy(), problem().y.numpy()

    def model() -> None:
        weights = numpyro.sample("weights", numpyro.distributions.Normal(0, 1).expand([3]))
        numpyro.sample("y", numpyro.distributions.Bernoulli(logits=x @ weights), obs=y)

    sampler = MCMC(NUTS(model), num_warmup=500, num_samples=5000, progress_bar=False)
    sampler.run(jax.random.PRNGKey(0))
    draws = np.asarray(sampler.get_samples()["weights"], dtype=float)
    mean, covariance = fitted(LogisticLikelihood(), problem().y)
    stds = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(0) - mean) < 0.1 * stds)
    assert np.all(np.abs(np.cov(draws.T) - covariance) < 0.1 * np.outer(stds, stds))
