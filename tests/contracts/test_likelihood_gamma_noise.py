"""Gaussian noise whose precision has a Gamma posterior: against quadrature, a grid and torch.distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from likelihood_cases import assert_equal, double, gamma_noise, scalar
from scipy import integrate, stats
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import GammaPrecision, GaussianGammaNoise


def gamma_density(posterior: GammaPrecision) -> Callable[[float], float]:
    return stats.gamma(posterior.shape.item(), scale=1 / posterior.rate.item()).pdf


def expected_over_the_precision(likelihood: GaussianGammaNoise, function: Callable[[float], float]) -> float:
    """∫ q(τ) f(τ^−½) dτ: the mean of a function of the standard deviation."""
    density = gamma_density(likelihood.posterior)
    options = {"epsabs": 1e-13, "epsrel": 1e-12, "limit": 200}
    return integrate.quad(lambda t: density(t) * function(t**-0.5) if t > 0 else 0.0, 0.0, np.inf, **options)[0]


OUTPUTS, TARGETS = double(0.3, -1.2), double(1.0, -0.4)
RESIDUALS = (TARGETS - OUTPUTS).numpy()


def test_expected_log_prob_equals_quadrature_over_the_precision() -> None:
    likelihood = gamma_noise()
    expected = expected_over_the_precision(likelihood, lambda std: stats.norm.logpdf(RESIDUALS, 0.0, std).sum())
    assert_equal(likelihood.expected_log_prob(OUTPUTS, TARGETS), expected, 1e-9)


def test_student_t_equals_quadrature_over_the_precision() -> None:
    likelihood = gamma_noise()
    expected = expected_over_the_precision(likelihood, lambda std: np.prod(stats.norm.pdf(RESIDUALS, 0.0, std)))
    assert_equal(likelihood.student_t().log_prob(OUTPUTS, TARGETS).exp(), expected, 1e-9)


def test_update_equals_the_normalised_posterior_on_a_grid() -> None:
    """Residuals of a known weight, so that the posterior over the precision is prior times likelihood, normalised."""
    outputs, targets = torch.randn(10, 2, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(6.0))
    likelihood.update(likelihood.squared_residuals(outputs, targets).sum(), 20)
    precision = np.linspace(1e-6, 8.0, 40_001)
    residuals = (targets - outputs).numpy().ravel()
    log_joint = stats.gamma(6.0, scale=1 / 6.0).logpdf(precision)
    log_joint += stats.norm.logpdf(residuals[:, None], 0.0, precision**-0.5).sum(0)
    joint = np.exp(log_joint - log_joint.max())
    posterior = joint / integrate.simpson(joint, x=precision)
    np.testing.assert_allclose(gamma_density(likelihood.posterior)(precision), posterior, rtol=1e-9, atol=1e-9)


def test_update_solves_the_objective_in_the_noise() -> None:
    """The derivative of ``Σ E[log p] − KL`` in (a, b) vanishes at the updated posterior; weights are averaged over."""
    outputs, targets = torch.randn(7, 10, 2, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    likelihood = GaussianGammaNoise(scalar(3.0), scalar(2.0))
    likelihood.update(likelihood.squared_residuals(outputs, targets).mean(0).sum(), 20)
    for buffer in (likelihood.posterior_shape, likelihood.posterior_rate):
        buffer.requires_grad_()
    (-10 * likelihood.nll(outputs, targets) - likelihood.kl()).backward()
    assert_equal(likelihood.posterior_shape.grad, 0.0)
    assert_equal(likelihood.posterior_rate.grad, 0.0)


def test_squared_residuals_are_summed_for_each_example() -> None:
    outputs, targets = torch.randn(3, 5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    expected = [[sum((y - f) ** 2) for f, y in zip(draw, targets.numpy(), strict=True)] for draw in outputs.numpy()]
    assert_equal(GaussianGammaNoise().squared_residuals(outputs, targets), np.array(expected))


def test_update_starts_from_the_prior_and_may_go_part_of_the_way() -> None:
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(5.0))
    for _ in range(2):
        likelihood.update(scalar(4.0), 10)
    assert (likelihood.posterior_shape.item(), likelihood.posterior_rate.item()) == (11.0, 7.0)
    likelihood.update(0.0, 0, step_size=0.25)
    assert (likelihood.posterior_shape.item(), likelihood.posterior_rate.item()) == (9.75, 6.5)


@pytest.mark.parametrize(
    ("squares", "count", "step_size"),
    [(-1.0, 3, 1.0), (math.nan, 3, 1.0), (1.0, -3, 1.0), (1.0, 3, 0.0), (1.0, 3, 1.5), (torch.ones(2), 3, 1.0)],
)
def test_impossible_updates_are_refused(squares: float | Tensor, count: int, step_size: float) -> None:
    with pytest.raises(InvalidArgument):
        GaussianGammaNoise().update(squares, count, step_size=step_size)


def test_kl_equals_torch_distributions_and_is_zero_at_the_prior() -> None:
    likelihood = gamma_noise()
    posterior, prior = (torch.distributions.Gamma(g.shape, g.rate) for g in (likelihood.posterior, likelihood.prior))
    assert_equal(likelihood.kl(), torch.distributions.kl_divergence(posterior, prior))
    assert GaussianGammaNoise(scalar(3.0), scalar(2.0)).kl() == 0


def test_float32_keeps_its_digits_after_many_examples() -> None:
    """With a shape of half a million, ``log Γ`` in float32 is off by whole units."""
    single, exact = GaussianGammaNoise(6.0, 6.0), GaussianGammaNoise(scalar(6.0), scalar(6.0))
    for likelihood in (single, exact):
        likelihood.update(123_456.0, 1_000_000)
    outputs, targets = torch.zeros(1, 3), torch.tensor([[0.25, -0.5, 0.0]])
    assert_equal(single.kl(), exact.kl(), 1e-6)
    expected = exact.student_t().log_prob(outputs.double(), targets)
    assert_equal(single.student_t().log_prob(outputs, targets), expected, 1e-6)
    expected = exact.expected_log_prob(outputs.double(), targets)
    assert_equal(single.expected_log_prob(outputs, targets), expected, 1e-6)


def test_the_prior_bounds_the_precision() -> None:
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(6.0))
    likelihood.update(0.0, 100)
    assert_equal(likelihood.posterior.mean, 56 / 6)
    assert_equal(likelihood.noise_std, math.sqrt(6 / 56))
