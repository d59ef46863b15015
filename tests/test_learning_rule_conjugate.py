"""Conjugate models: one step of the learning rule with ρ = 1 is Bayes' rule (Eq. 54)."""

from __future__ import annotations

import numpy as np
import sklearn.linear_model
import torch
import torch.distributions as D
from torch import Tensor
from torch.testing import assert_close

from bayesrule.expfam import (
    Bernoulli,
    Expectation,
    Gamma,
    GaussianFull,
    Natural,
    gradient_in_expectation,
    natural_gradient,
)
from expfam_members import DOUBLE, assert_same, member
from learning_rule_problems import gamma_log_moments, one_step, regression


def posterior_by_formula(x: Tensor, y: Tensor, noise_precision: float, prior_precision: float) -> tuple[Tensor, Tensor]:
    X, Y = x.numpy(), y.numpy()
    precision = noise_precision * X.T @ X + prior_precision * np.eye(3)
    return torch.as_tensor(np.linalg.solve(precision, noise_precision * X.T @ Y)), torch.as_tensor(precision)


def test_linear_regression_in_one_step() -> None:
    x, y = regression()
    family, start = GaussianFull(), member(GaussianFull(), seed=1)

    def of_mean_and_covariance(mean: Tensor, covariance: Tensor) -> Tensor:
        """E_q[−log p(y, θ)] with noise precision 4 and prior precision 0.7, up to a constant."""
        misfit = (y - x @ mean).square().sum() + torch.trace(x @ covariance @ x.mT)
        return 0.5 * 4.0 * misfit + 0.5 * 0.7 * (mean.square().sum() + torch.trace(covariance))

    def of_expectation(mu: Expectation) -> Tensor:
        return of_mean_and_covariance(mu["linear"], mu["quadratic"] - torch.outer(mu["linear"], mu["linear"]))

    def of_natural(natural: Natural) -> Tensor:
        mean, precision = family.to_mean_precision(natural)
        return of_mean_and_covariance(mean, torch.linalg.inv(precision))

    for gradient in (
        gradient_in_expectation(family, of_expectation, start),
        natural_gradient(family, of_natural, start),
    ):
        got = family.to_mean_precision(family.check(one_step(family, start, gradient, 1.0)))
        assert_close(got, posterior_by_formula(x, y, 4.0, 0.7), rtol=1e-10, atol=1e-10)


def test_ridge_regression() -> None:
    """Sec. 1.3.3: the expected loss is linear in μ, and its coefficients (Eq. 14) hold the solution."""
    x, y = regression()

    def expected_loss(mu: Expectation) -> Tensor:
        return -y @ x @ mu["linear"] + 0.5 * torch.trace((x.mT @ x + 2.0 * torch.eye(3)) @ mu["quadratic"])

    start = member(GaussianFull(), seed=2)
    gradient = gradient_in_expectation(GaussianFull(), expected_loss, start)
    assert_same(gradient, Natural(linear=-x.mT @ y, quadratic=0.5 * (x.mT @ x + 2.0 * torch.eye(3))), 1e-12)
    mean, _ = GaussianFull().to_mean_precision(one_step(GaussianFull(), start, gradient, 1.0))
    ridge = sklearn.linear_model.Ridge(alpha=2.0, fit_intercept=False).fit(x.numpy(), y.numpy())
    assert_close(mean, torch.as_tensor(ridge.coef_), rtol=1e-10, atol=1e-10)


def test_poisson_rate_in_one_step_from_the_usual_parameters() -> None:
    counts, prior = torch.tensor([3.0, 0.0, 7.0, 2.0]).double(), D.Gamma(DOUBLE + 2.0, DOUBLE + 0.5)

    def expected_loss(natural: Natural) -> Tensor:
        shape, rate = Gamma().to_shape_rate(natural)
        expected_log, mean = gamma_log_moments(shape, rate)
        log_likelihood = (counts * expected_log - mean - torch.lgamma(counts + 1)).sum()
        log_prior = (prior.concentration - 1) * expected_log - prior.rate * mean
        return -(log_likelihood + log_prior)

    start = Gamma().from_shape_rate(DOUBLE + 0.3, DOUBLE + 9.0)
    posterior = one_step(Gamma(), start, natural_gradient(Gamma(), expected_loss, start), 1.0)
    assert_close(Gamma().to_shape_rate(posterior), (DOUBLE + 2.0 + 12.0, DOUBLE + 0.5 + 4.0), rtol=1e-10, atol=1e-10)


def test_noise_precision_in_one_step() -> None:
    """y ~ N(0, 1/τ) and τ ~ Gamma(6, 6): the posterior is Gamma(6 + N/2, 6 + Σy²/2)."""
    y = torch.tensor([0.5, -1.5, 2.0]).double()

    def expected_loss(mu: Expectation) -> Tensor:
        log_likelihood = (0.5 * mu["log"] - 0.5 * mu["linear"] * y.square()).sum()
        return -(log_likelihood + 5 * mu["log"] - 6 * mu["linear"])

    start = member(Gamma(), seed=3)
    posterior = one_step(Gamma(), start, gradient_in_expectation(Gamma(), expected_loss, start), 1.0)
    assert_close(Gamma().to_shape_rate(posterior), (DOUBLE + 7.5, DOUBLE + 9.25), rtol=1e-12, atol=1e-12)


def test_independent_signs_in_one_step() -> None:
    """ℓ(θ) = −⟨b, θ⟩ on {−1, +1}³: the posterior by enumeration."""
    b = torch.tensor([0.4, -1.0, 2.0]).double()
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 3)
    marginals = (corners > 0).double().mT @ torch.softmax(corners @ b, dim=0)
    start = member(Bernoulli(), seed=4)
    gradient = gradient_in_expectation(Bernoulli(), lambda mu: -(b * mu["linear"]).sum(), start)
    posterior = Bernoulli().to_probability(one_step(Bernoulli(), start, gradient, 1.0))
    assert_close(posterior, marginals, rtol=1e-12, atol=1e-12)
