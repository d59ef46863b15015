"""What each kind of likelihood adds to the contract of all."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from likelihood_cases import FAILURE_RATE, assert_equal, double, mixture_law, scalar, sigmoid
from scipy import stats
from torch import Tensor
from torch.func import functional_call

from bayesrule.errors import ShapeMismatch
from bayesrule.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianMixture,
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
    assert GaussianMixture().output_size(2) == 18
    assert GaussianMixture(components=4).output_size(3) == 36
    assert Gaussian().output_size(3) == Categorical().output_size(3) == 3


def test_heteroscedastic_noise_is_bounded_below_and_grows_linearly() -> None:
    likelihood = HeteroscedasticGaussian(min_std=0.01)
    outputs = torch.tensor([[0.0, -1e4], [0.0, 1e4]], requires_grad=True)
    value = likelihood.log_prob(outputs, torch.zeros(2, 1))
    assert_equal(value, stats.norm.logpdf(0.0, 0.0, [0.01, 1e4 + 0.01]), 1e-6)
    value.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_a_mixture_lays_each_entry_s_components_side_by_side() -> None:
    outputs = torch.arange(12, dtype=torch.float64) / 10
    log_weights, means, stds = GaussianMixture(components=2).mixture(outputs)
    assert_equal(means, [[0.0, 0.1], [0.2, 0.3]])
    assert_equal(stds, np.exp([[0.4, 0.5], [0.6, 0.7]]))
    assert_equal(log_weights, np.log([[sigmoid(-0.1), sigmoid(0.1)]] * 2))
    with pytest.raises(ShapeMismatch, match="needs 6 outputs for each number"):
        GaussianMixture(components=2).mixture(outputs[:-1])


def test_adding_log_c_scales_every_std_of_a_mixture_by_c() -> None:
    likelihood, outputs = GaussianMixture(components=2), torch.randn(5, 12, dtype=torch.float64)
    shift = torch.zeros(12, dtype=torch.float64)
    shift[4:8] = math.log(2.5)
    scaled, plain = likelihood.mixture(outputs + shift), likelihood.mixture(outputs)
    assert_equal(scaled[2], 2.5 * plain[2])
    assert torch.equal(scaled[0], plain[0])
    assert torch.equal(scaled[1], plain[1])


def test_a_mixture_far_from_its_target_does_not_underflow() -> None:
    outputs = double(0.0, 1.0, math.log(0.1), math.log(0.2), 500.0, -500.0).requires_grad_()
    value = GaussianMixture(components=2).log_prob(outputs, double(1e4))
    expected = np.logaddexp(stats.norm.logpdf(1e4, 0.0, 0.1), -1000 + stats.norm.logpdf(1e4, 1.0, 0.2))
    assert_equal(value, expected)
    value.backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_a_mixture_sample_picks_a_component_and_then_a_value() -> None:
    outputs = double(-5.0, 5.0, math.log(0.5), math.log(2.0), math.log(0.3), math.log(0.7)).expand(4, -1)
    noise = Replay([double(0.0, 0.29, 0.31, 0.99).unsqueeze(-1), double(1.0, -1.0, 1.0, -2.0).unsqueeze(-1)])
    assert_equal(GaussianMixture(components=2).sample(outputs, noise), double(-4.5, -5.5, 7.0, 1.0).unsqueeze(-1))


def test_mixture_samples_have_the_law() -> None:
    likelihood, outputs = GaussianMixture(), torch.randn(18, dtype=torch.float64)
    samples = likelihood.sample(outputs.expand(20_000, -1))
    uniform = mixture_law(outputs.numpy(), 3).cdf(samples).numpy()
    for entry in uniform.T:
        assert stats.kstest(entry, "uniform").pvalue > FAILURE_RATE / 2


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
