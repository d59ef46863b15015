"""What each kind of likelihood adds to the contract of all."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from likelihood_cases import FAILURE_RATE, assert_equal, double, scalar, sigmoid
from scipy import stats
from torch import Tensor
from torch.func import functional_call

from bayesrule.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from bayesrule.random import Replay


def test_gaussian_learns_its_noise_only_if_asked() -> None:
    fixed, learned = Gaussian(noise_std=0.5), Gaussian(noise_std=0.5, learn=True)
    assert not list(fixed.parameters())
    assert [name for name, _ in learned.named_parameters()] == ["log_noise_std"]
    assert fixed.state_dict().keys() == learned.state_dict().keys()
    assert_equal(learned.noise_std, 0.5, 1e-6)


def test_the_learned_noise_that_fits_best_is_the_residuals_root_mean_square() -> None:
    residuals = torch.randn(50, 2, dtype=torch.float64) * double(0.5, 3.0)
    best = Gaussian(residuals.square().mean(0).sqrt(), learn=True)
    best.nll(torch.zeros_like(residuals), residuals).backward()
    assert_equal(best.log_noise_std.grad, torch.zeros(2))
    assert torch.autograd.gradcheck(
        lambda log_std: functional_call(_Nll(best), {"likelihood.log_noise_std": log_std}, (residuals,)),
        double(0.1, -0.4).requires_grad_(),
    )


class _Nll(torch.nn.Module):
    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, targets: Tensor) -> Tensor:
        return self.likelihood.nll(torch.zeros_like(targets), targets)


def test_output_size_counts_means_and_scales() -> None:
    assert HeteroscedasticGaussian().output_size(3) == 6
    assert Gaussian().output_size(3) == Categorical().output_size(3) == 3


def test_heteroscedastic_noise_is_bounded_below_and_grows_linearly() -> None:
    likelihood = HeteroscedasticGaussian(min_std=0.01)
    outputs = torch.tensor([[0.0, -1e4], [0.0, 1e4]], requires_grad=True)
    value = likelihood.log_prob(outputs, torch.zeros(2, 1))
    assert_equal(value, stats.norm.logpdf(0.0, 0.0, [0.01, 1e4 + 0.01]), 1e-6)
    value.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_bernoulli_keeps_the_digits_of_a_sure_prediction() -> None:
    value = Bernoulli().log_prob(double(50.0), double(1.0)).item()
    assert value == pytest.approx(-math.exp(-50.0), rel=1e-12, abs=0.0)


def test_categorical_sample_inverts_the_distribution_function() -> None:
    logits = torch.tensor([-1e4, 0.0, 0.0, -1e4]).expand(5, -1)
    uniform = torch.tensor([0.0, 0.49, 0.5, 0.99, 1 - 2**-24])
    assert Categorical().sample(logits, Replay([uniform])).tolist() == [1, 1, 2, 2, 2]


def test_probabilities_are_averaged_and_not_logits() -> None:
    outputs = double(-2.0, 2.0, 4.0).reshape(3, 1, 1)
    mean, epistemic, aleatoric = Bernoulli().predictive_moments(outputs)
    assert_equal(mean, sigmoid(np.array([-2.0, 2.0, 4.0])).mean().reshape(1, 1))
    assert_equal(epistemic + aleatoric, mean * (1 - mean))


def test_poisson_sample_inverts_the_distribution_function() -> None:
    rate, uniform = np.meshgrid(np.logspace(-6, 5, 23), np.array([1e-9, 0.001, 0.3, 0.7, 0.999, 1 - 1e-9]))
    noise = Replay([torch.from_numpy(uniform)])
    assert_equal(Poisson().sample(torch.from_numpy(rate).log(), noise), stats.poisson.ppf(uniform, rate), 0.0)


def test_poisson_samples_of_a_vanishing_rate_are_zero() -> None:
    assert (Poisson().sample(torch.full((100, 1), -1e4)) == 0).all()


@pytest.mark.parametrize("shape", [0.4, 2.5])
def test_student_samples_have_the_joint_law(shape: float) -> None:
    """Marginals are t; the squared radius over d follows F(d, 2a), which independent t entries would not."""
    samples = StudentT(scalar(shape), scalar(3.0)).sample(torch.zeros(20_000, 3, dtype=torch.float64)).numpy()
    standard = samples / math.sqrt(3.0 / shape)
    for entry in standard.T:
        assert stats.kstest(entry, stats.t(2 * shape).cdf).pvalue > FAILURE_RATE / 8
    assert stats.kstest((standard**2).mean(-1), stats.f(3, 2 * shape).cdf).pvalue > FAILURE_RATE / 8


def test_student_variance_is_infinite_for_heavy_tails() -> None:
    assert StudentT(1.0, 2.0).moments(torch.zeros(2, 1)).variance.isinf().all()
