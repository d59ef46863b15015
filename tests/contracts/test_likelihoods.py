"""The contract every registered likelihood keeps: densities, moments, samples and their mixture over draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from likelihood_cases import CASES, FAILURE_RATE, Case, assert_equal, every_case
from scipy import stats

from bayesrule.likelihoods import LIKELIHOODS, GaussianGammaNoise, Likelihood, PointLikelihood


def test_every_registered_likelihood_has_a_case() -> None:
    assert {type(case.build()) for case in CASES} == set(LIKELIHOODS)


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_no_concrete_method_is_overridden(family: type[Likelihood]) -> None:
    for base in (Likelihood, PointLikelihood):
        if issubclass(family, base):
            concrete = {
                name
                for name, value in vars(base).items()
                if callable(value) and not name.startswith("__") and not getattr(value, "__isabstractmethod__", False)
            }
            assert not concrete & set(vars(family))


@every_case
def test_log_prob_equals_the_oracle(case: Case) -> None:
    outputs, targets = case.outputs(5), case.targets(5)
    assert_equal(case.build().log_prob(outputs, targets), case.log_prob(outputs.numpy(), targets.numpy()))


@every_case
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_log_prob_has_the_leading_shape_of_the_outputs(case: Case, leading: tuple[int, ...]) -> None:
    outputs, targets = case.outputs(*leading), case.targets(*leading)
    expected = case.log_prob(outputs.numpy(), targets.numpy())
    assert_equal(case.build().log_prob(outputs, targets), np.asarray(expected).reshape(leading))


@every_case
def test_leading_draws_meet_every_target(case: Case) -> None:
    outputs, targets = case.outputs(2, 3, 5), case.targets(5)
    expected = np.stack([[case.log_prob(f.numpy(), targets.numpy()) for f in row] for row in outputs])
    assert_equal(case.build().log_prob(outputs, targets), expected)


@every_case
def test_moments_equal_the_oracle(case: Case) -> None:
    outputs = case.outputs(2, 5)
    mean, variance = case.build().moments(outputs)
    assert mean.shape == variance.shape == (2, 5, case.target_dim)
    assert_equal(mean, case.mean(outputs.numpy()))
    assert_equal(variance, np.array(case.variance(outputs.numpy())))


@every_case
def test_samples_have_the_stated_moments(case: Case) -> None:
    draws = 100_000
    outputs = case.outputs()
    samples = case.build().sample(outputs.expand(draws, -1), generator=torch.Generator().manual_seed(1))
    values = np.eye(case.target_dim)[samples.numpy()] if samples.ndim == 1 else samples.numpy()
    assert values.shape == (draws, case.target_dim)
    mean, variance = case.mean(outputs.numpy()), case.variance(outputs.numpy())
    quantile = stats.norm.isf(FAILURE_RATE / 2 / (2 * case.target_dim))  # shared by all means and all variances
    squares = (values - mean) ** 2
    assert (np.abs(values.mean(0) - mean) < quantile * np.sqrt(variance / draws)).all()
    assert (np.abs(squares.mean(0) - variance) < quantile * squares.std(0) / math.sqrt(draws)).all()


@every_case
def test_samples_are_targets_without_gradient_and_follow_their_generator(case: Case) -> None:
    likelihood, outputs = case.build(), case.outputs(2, 5).requires_grad_()
    first, second = (likelihood.sample(outputs, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert likelihood.log_prob(outputs, first).isfinite().all()
    torch.manual_seed(3)
    assert torch.equal(likelihood.sample(outputs), first)


@every_case
def test_predictive_moments_are_those_of_the_mixture(case: Case) -> None:
    outputs = case.outputs(4, 5)
    means, variances = case.mean(outputs.numpy()), np.array(case.variance(outputs.numpy()))
    predictive = case.build().predictive_moments(outputs)
    mixture_mean = means.sum(0) / 4
    second_moment = (variances + means**2).sum(0) / 4
    assert_equal(predictive.mean, mixture_mean)
    assert_equal(predictive.epistemic_variance, ((means - mixture_mean) ** 2).sum(0) / 4)
    assert_equal(predictive.aleatoric_variance, variances.sum(0) / 4)
    assert_equal(predictive.total_variance, second_moment - mixture_mean**2)


@every_case
def test_one_draw_has_no_epistemic_variance(case: Case) -> None:
    assert (case.build().predictive_moments(case.outputs(1, 5)).epistemic_variance == 0).all()


@every_case
def test_mixture_log_prob_averages_densities(case: Case) -> None:
    outputs, targets = case.outputs(4, 5), case.targets(5)
    densities = np.exp([case.log_prob(f.numpy(), targets.numpy()) for f in outputs])
    assert_equal(case.build().mixture_log_prob(outputs, targets), np.log(densities.sum(0) / 4))


@every_case
def test_mixture_accepts_one_draw_of_one_example(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(1, 1), case.targets(1)
    assert_equal(likelihood.mixture_log_prob(outputs, targets), likelihood.log_prob(outputs[0], targets))


@every_case
def test_nll_is_a_mean_over_examples_and_draws(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(3, 5), case.targets(5)
    expected = sum(likelihood.expected_log_prob(f, y) for row in outputs for f, y in zip(row, targets, strict=True))
    assert_equal(likelihood.nll(outputs, targets), -expected / 15)


@every_case
def test_only_a_likelihood_with_its_own_posterior_has_a_kl(case: Case) -> None:
    likelihood = case.build()
    assert likelihood.kl().shape == ()
    assert (likelihood.kl() > 0) == isinstance(likelihood, GaussianGammaNoise)
