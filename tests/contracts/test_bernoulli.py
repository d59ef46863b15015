"""The Bernoulli posterior over weights of −1 and +1 against `scipy.stats` (failure rate 1e-6)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_oracle import array
from examples import SHAPES, bernoulli
from scipy import stats

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.posteriors import BernoulliPosterior, Diagonal
from bayesrule.priors import kl_divergence

FAILURE_RATE = 1e-6
shapes = pytest.mark.parametrize("shape", SHAPES)


def probability(posterior: BernoulliPosterior) -> np.ndarray:
    """p(+1) from the log-odds 2λ."""
    return 1 / (1 + np.exp(-2 * array(posterior.natural)))


@shapes
def test_moments_density_and_entropy(shape: tuple[int, int]) -> None:
    posterior = bernoulli(shape).posterior
    law = stats.bernoulli(probability(posterior))
    np.testing.assert_allclose(array(posterior.mean), 2 * law.mean() - 1, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(array(posterior.variance), 4 * law.var(), rtol=1e-12)
    np.testing.assert_allclose(posterior.entropy().item(), law.entropy().sum(), rtol=1e-12)
    value = posterior.rsample((6,))
    want = law.logpmf(array(value) > 0).sum((-2, -1))
    np.testing.assert_allclose(array(posterior.log_prob(value)), want, rtol=1e-12)


@shapes
def test_draws_are_signs_with_the_right_frequency(shape: tuple[int, int]) -> None:
    posterior = bernoulli(shape).posterior
    draws = array(posterior.rsample((4000,), generator=torch.Generator().manual_seed(0)))
    assert set(np.unique(draws)) <= {-1.0, 1.0}
    counts, rates = (draws > 0).sum(0).ravel(), probability(posterior).ravel()
    for count, rate in zip(counts, rates, strict=True):
        assert stats.binomtest(int(count), 4000, rate).pvalue > FAILURE_RATE / len(rates)


@pytest.mark.parametrize("size", [20.0, 300.0])
def test_sure_weights_keep_their_relative_precision(size: float) -> None:
    """There tanh λ rounds to 1, but the variance is 4e^{−2λ} and the entropy (2λ + 1)e^{−2λ}, up to smaller terms."""
    posterior = BernoulliPosterior(torch.tensor([size, -size], dtype=torch.float64), 1)
    np.testing.assert_allclose(array(posterior.variance), 4 * np.exp(-2 * size), rtol=1e-12)
    np.testing.assert_allclose(posterior.entropy().item(), 2 * (2 * size + 1) * np.exp(-2 * size), rtol=1e-12)


def test_gradients_of_density_and_entropy() -> None:
    free = bernoulli((5, 3)).parameters["natural"].clone().requires_grad_()
    value = BernoulliPosterior(free.detach(), 2).rsample()
    assert torch.autograd.gradcheck(lambda natural: BernoulliPosterior(natural, 2).entropy(), free)
    assert torch.autograd.gradcheck(lambda natural: BernoulliPosterior(natural, 2).log_prob(value), free)


def test_the_entropy_of_a_fair_weight_is_a_flat_maximum() -> None:
    fair = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    entropy = BernoulliPosterior(fair, 1).entropy()
    assert entropy.item() == pytest.approx(3 * np.log(2), rel=1e-12)
    assert torch.equal(torch.autograd.grad(entropy, fair)[0], torch.zeros(3, dtype=torch.float64))


@shapes
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_a_relaxed_draw_is_the_concrete_one(shape: tuple[int, int], temperature: float) -> None:
    """2·σ((logit p + logit u)/τ) − 1 with p and u   [Maddison et al. 2017, Eq. 26]."""
    posterior = bernoulli(shape).posterior
    uniform = torch.rand(posterior.noise_shape, dtype=torch.float64)
    p, u = probability(posterior), array(uniform)
    concrete = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + np.log(u / (1 - u))) / temperature))
    np.testing.assert_allclose(array(posterior.relaxed(uniform, temperature)), 2 * concrete - 1, rtol=1e-9, atol=1e-9)


def test_a_cold_relaxed_draw_is_the_hard_one_of_the_same_noise() -> None:
    posterior = bernoulli((4, 6)).posterior
    uniform = torch.rand(100, 4, 6, dtype=torch.float64)
    assert torch.equal(posterior.relaxed(uniform, 1e-9), posterior.from_noise(uniform))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_ends_of_the_uniform_give_finite_draws_and_gradients(dtype: torch.dtype) -> None:
    natural = torch.zeros(2, dtype=dtype, requires_grad=True)
    posterior = BernoulliPosterior(natural, 1)
    ends = torch.tensor([0.0, 1.0], dtype=dtype)
    assert posterior.from_noise(ends).tolist() == [-1.0, 1.0]
    relaxed = posterior.relaxed(ends, 10.0)
    assert (relaxed.abs() < 1).all()
    assert torch.autograd.grad(relaxed.sum(), natural)[0].isfinite().all()


def test_relaxed_draws_are_differentiable_and_hard_ones_are_not() -> None:
    natural = bernoulli((5, 3)).parameters["natural"].clone().requires_grad_()
    uniform = torch.rand(5, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda n: BernoulliPosterior(n, 2).relaxed(uniform, 0.5), natural)
    assert not BernoulliPosterior(natural, 2).from_noise(uniform).requires_grad


def test_it_is_not_symmetric_about_its_mean() -> None:
    assert not bernoulli((5, 3)).posterior.independent


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    posterior = bernoulli((1, 5)).posterior
    with pytest.raises(InvalidArgument, match="temperature"):
        posterior.relaxed(torch.rand(1, 5, dtype=torch.float64), temperature)


def test_parts_are_needed_for_a_marginal() -> None:
    with pytest.raises(InvalidArgument, match="no parameter"):
        bernoulli((1, 5)).posterior.marginal("weight")


def test_its_kl_is_the_bregman_divergence_of_its_family() -> None:
    generator = torch.Generator().manual_seed(0)
    q, p = (torch.randn(4, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    expected = torch.distributions.kl_divergence(
        torch.distributions.Bernoulli(logits=2 * q), torch.distributions.Bernoulli(logits=2 * p)
    ).sum()
    found = kl_divergence(BernoulliPosterior(q, event_dim=2), BernoulliPosterior(p, event_dim=2))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_posteriors_of_different_kinds_have_no_kl() -> None:
    gaussian = Diagonal().build(Diagonal().init(torch.zeros(2, 2)), event_dim=2)
    with pytest.raises(Unsupported, match="natural coordinates"):
        kl_divergence(BernoulliPosterior(torch.zeros(2, 2), event_dim=2), gaussian)
