"""The mixture posterior against `torch.distributions` and exact laws of its draws (failure rate 1e-6)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_oracle import array, dense
from examples import SHAPES, mixture
from scipy import stats
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.posteriors import MixturePosterior

FAILURE_RATE = 1e-6
shapes = pytest.mark.parametrize("shape", SHAPES)


def oracle(posterior: MixturePosterior) -> MixtureSameFamily:
    means = torch.stack([each.mean.flatten() for each in posterior.components])
    covariances = torch.stack([torch.tensor(dense(each.covariance)) for each in posterior.components])
    return MixtureSameFamily(Categorical(logits=posterior.logits), MultivariateNormal(means, covariances))


@shapes
def test_moments_and_density(shape: tuple[int, int]) -> None:
    posterior = mixture(shape).posterior
    want = oracle(posterior)
    value = torch.randn(4, *shape, dtype=torch.float64)
    torch.testing.assert_close(posterior.mean.flatten(), want.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(posterior.variance.flatten(), want.variance, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(posterior.log_prob(value), want.log_prob(value.flatten(-2)), rtol=1e-9, atol=1e-9)


@shapes
def test_draws_follow_the_mixture(shape: tuple[int, int]) -> None:
    """A projection of the draws on a fixed direction is a mixture on the line: Kolmogorov and Smirnov's test."""
    posterior = mixture(shape).posterior
    draws = array(posterior.rsample((4000,), generator=torch.Generator().manual_seed(3))).reshape(4000, -1)
    direction = np.linspace(1, 2, draws.shape[1]) * (-1) ** np.arange(draws.shape[1])
    weights = array(posterior.logits.softmax(-1))
    means = [direction @ array(each.mean).ravel() for each in posterior.components]
    stds = [np.sqrt(direction @ dense(each.covariance) @ direction) for each in posterior.components]

    def cdf(x: np.ndarray) -> np.ndarray:
        return sum(w * stats.norm.cdf(x, m, s) for w, m, s in zip(weights, means, stds, strict=True))

    assert stats.kstest(draws @ direction, cdf).pvalue > FAILURE_RATE


def test_first_noise_picks_the_component_and_the_others_are_its_noise() -> None:
    posterior = mixture((5, 3)).posterior
    first, second, third = array(posterior.logits.softmax(-1))
    middles = [first / 2, first + second / 2, first + second + third / 2]
    assert posterior.noise_shape == (1 + 2 * 15,)  # the second component is a sum, with two noises
    for middle, component in zip(middles, posterior.components, strict=True):
        noise = torch.randn(31, dtype=torch.float64)
        noise[0] = float(stats.norm.ppf(middle))
        own = noise[1 : 1 + component.noise_shape.numel()].reshape(component.noise_shape)
        assert torch.equal(posterior.from_noise(noise), component.from_noise(own))


@pytest.mark.parametrize("extreme", [-40.0, 40.0])
def test_extreme_noise_picks_the_first_or_the_last_component(extreme: float) -> None:
    posterior = mixture((5, 3)).posterior
    noise = torch.zeros(31, dtype=torch.float64)
    noise[0] = extreme
    assert torch.equal(posterior.from_noise(noise), posterior.components[0 if extreme < 0 else 2].mean)


def test_draws_have_gradients_in_the_picked_component_only() -> None:
    example = mixture((5, 3))
    free = {key: value.clone().requires_grad_() for key, value in example.parameters.items()}
    noise = torch.randn(31, dtype=torch.float64)
    noise[0] = -10.0
    draw = example.build(free).from_noise(noise)
    gradients = torch.autograd.grad(draw.sum(), list(free.values()), allow_unused=True, materialize_grads=True)
    moving = {name for name, gradient in zip(free, gradients, strict=True) if gradient.abs().max() > 0}
    assert moving == {"0.mean", "0.log_std"}


def test_log_prob_has_gradients_in_the_logits() -> None:
    example = mixture((1, 5))
    value = torch.randn(1, 5, dtype=torch.float64)
    logits = example.parameters["logits"].clone().requires_grad_()

    def log_prob(free: Tensor) -> Tensor:
        return example.build({**example.parameters, "logits": free}).log_prob(value)

    assert torch.autograd.gradcheck(log_prob, logits)


def test_from_noise_under_vmap() -> None:
    example = mixture((4, 6))
    parameters, noise = example.batch(5), torch.randn(5, 49, dtype=torch.float64)
    mapped = torch.func.vmap(lambda p, e: example.build(p).from_noise(e))(parameters, noise)
    torch.testing.assert_close(mapped, example.build(parameters).from_noise(noise), rtol=1e-12, atol=1e-12)


def test_a_mixture_of_one_is_its_component() -> None:
    component = mixture((5, 3)).posterior.components[0]
    single = MixturePosterior(torch.zeros(1, dtype=torch.float64), (component,))
    value = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(single.log_prob(value), component.log_prob(value), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(single.variance, component.variance, rtol=1e-12, atol=1e-12)
    assert not single.independent


def test_the_entropy_is_refused_with_an_estimator_that_works() -> None:
    posterior = mixture((1, 5)).posterior
    with pytest.raises(Unsupported, match=r"-q\.log_prob\(q\.rsample"):
        posterior.entropy()
    estimate: Tensor = -posterior.log_prob(posterior.rsample((10,))).mean(0)
    assert estimate.isfinite()


def test_unfit_components_and_logits_are_refused() -> None:
    small, large = mixture((1, 5)).posterior.components[0], mixture((5, 3)).posterior.components[0]
    with pytest.raises(InvalidArgument, match="at least one"):
        MixturePosterior(torch.zeros(0, dtype=torch.float64), ())
    with pytest.raises(ShapeMismatch, match="one shape"):
        MixturePosterior(torch.zeros(2, dtype=torch.float64), (small, large))
    with pytest.raises(ShapeMismatch, match=r"logits must have shape \(1,\)"):
        MixturePosterior(torch.zeros(2, dtype=torch.float64), (small,))
