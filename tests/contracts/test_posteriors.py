"""Every posterior against `torch.distributions` and its own draws.

Statistical tests use exact laws and fixed seeds; each would fail for a right posterior with probability 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_oracle import array, dense
from examples import EXAMPLES, GAUSSIANS, Example
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal

from bayesrule.errors import Unsupported
from bayesrule.posteriors import BernoulliPosterior, GaussianPosterior, PointPosterior, Posterior

FAILURE_RATE = 1e-6
DRAWS = 4000

every = pytest.mark.parametrize("example", EXAMPLES, ids=str)
gaussians = pytest.mark.parametrize("example", GAUSSIANS, ids=str)


def density(posterior: Posterior, value: Tensor) -> Tensor | None:
    """The log-density, or None where it is refused with a remedy."""
    try:
        return posterior.log_prob(value)
    except Unsupported as caught:
        refusal = caught
    assert refusal.remedy
    return None


def oracle(posterior: GaussianPosterior) -> MultivariateNormal:
    return MultivariateNormal(posterior.mean.flatten(), torch.tensor(dense(posterior.covariance)))


@gaussians
def test_log_prob_is_that_of_the_dense_normal_or_refused(example: Example) -> None:
    posterior = example.posterior
    value = torch.randn(3, *posterior.mean.shape, dtype=torch.float64)
    got = density(posterior, value)
    if got is None:
        assert not posterior.covariance.exact_logdet
    else:
        want = oracle(posterior).log_prob(value.flatten(-posterior.event_dim))
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@gaussians
def test_entropy_is_that_of_the_dense_normal_or_below(example: Example) -> None:
    posterior = example.posterior
    want = oracle(posterior).entropy().item()
    if posterior.covariance.exact_logdet:
        assert posterior.entropy().item() == pytest.approx(want, rel=1e-9, abs=1e-9)
    else:
        assert posterior.entropy().item() <= want + 1e-9


@gaussians
def test_moments_of_draws(example: Example) -> None:
    """Exact laws of whitened draws z: n‖z̄‖² is χ², and the Cholesky factor T of Σ zzᵀ has Bartlett's law.

    The rate is shared by three statistics: the mean, the squares of T's diagonal, T_ii² ~ χ²(n − i), by Bonferroni,
    and the sum of squares below it.
    """
    posterior = example.posterior
    draws = posterior.rsample((DRAWS,), generator=torch.Generator().manual_seed(0))
    assert draws.shape == (DRAWS, *posterior.mean.shape)
    centred = array(draws - posterior.mean).reshape(DRAWS, -1)
    whitened = np.linalg.solve(np.linalg.cholesky(dense(posterior.covariance)), centred.T)
    size = len(whitened)
    factor = np.linalg.cholesky(whitened @ whitened.T)
    rate = FAILURE_RATE / 3

    assert DRAWS * np.sum(whitened.mean(1) ** 2) < stats.chi2.isf(rate, size)
    freedom = DRAWS - np.arange(size)
    upper, lower = (stats.chi2.ppf(level, freedom) for level in (1 - rate / size / 2, rate / size / 2))
    assert ((lower < np.diag(factor) ** 2) & (np.diag(factor) ** 2 < upper)).all()
    if size > 1:
        assert np.sum(np.tril(factor, -1) ** 2) < stats.chi2.isf(rate, size * (size - 1) / 2)


@every
def test_declared_shapes(example: Example) -> None:
    for posterior in (example.posterior, example.build(example.batch(2, 3))):
        assert posterior.variance.shape == posterior.stddev.shape == posterior.mean.shape
        assert posterior.event_shape == posterior.mean.shape[posterior.mean.ndim - posterior.event_dim :]
        assert posterior.rsample().shape == posterior.mean.shape
        assert posterior.rsample((4, 2)).shape == (4, 2, *posterior.mean.shape)
        torch.testing.assert_close(posterior.stddev.square(), posterior.variance, rtol=1e-12, atol=1e-12)


@every
def test_batched_posteriors_equal_one_by_one(example: Example) -> None:
    parameters = example.batch(3)
    batch = example.build(parameters)
    uniform = batch.noise_law == "uniform"
    shape = (2, *batch.noise_shape)
    noise = torch.rand(shape, dtype=torch.float64) if uniform else torch.randn(shape, dtype=torch.float64)
    draws = batch.from_noise(noise)
    for index in range(3):
        one = example.build({key: value[index] for key, value in parameters.items()})
        own = noise[:, index] if one.noise_shape.numel() else noise
        torch.testing.assert_close(draws[:, index], one.from_noise(own), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(batch.mean[index], one.mean, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(batch.variance[index], one.variance, rtol=1e-12, atol=1e-12)
        densities = density(batch, draws)
        if densities is not None:
            torch.testing.assert_close(densities[:, index], one.log_prob(draws[:, index]), rtol=1e-9, atol=1e-9)


@every
def test_draws_repeat_with_the_generator(example: Example) -> None:
    first, again, other = (
        example.posterior.rsample((2,), generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)
    )
    assert torch.equal(first, again)
    is_point = isinstance(example.posterior, PointPosterior)
    assert torch.equal(first, other) == is_point or isinstance(example.posterior, BernoulliPosterior)


@gaussians
def test_draws_are_differentiable_in_every_parameter(example: Example) -> None:
    free = {key: value.clone().requires_grad_() for key, value in example.parameters.items()}
    draw = example.build(free).rsample()
    for name, gradient in zip(free, torch.autograd.grad(draw.square().sum(), list(free.values())), strict=True):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0, name


@gaussians
def test_noise_enters_through_the_root(example: Example) -> None:
    posterior = example.posterior
    noise = torch.randn(posterior.noise_shape, dtype=torch.float64)
    assert torch.equal(posterior.from_noise(torch.zeros_like(noise)), posterior.mean)
    want = posterior.mean + posterior.covariance.sqrt_matmul(noise)
    torch.testing.assert_close(posterior.from_noise(noise), want, rtol=0, atol=0)


@every
def test_a_posterior_is_frozen(example: Example) -> None:
    posterior = example.posterior
    for field in posterior.__dataclass_fields__:
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(posterior, field, None)


@gaussians
def test_independent_says_whether_the_covariance_is_diagonal(example: Example) -> None:
    matrix = dense(example.operator)
    if example.posterior.independent:
        assert np.array_equal(matrix, np.diag(np.diag(matrix)))
    elif len(matrix) > 1:
        assert not np.allclose(matrix, np.diag(np.diag(matrix)))


@pytest.mark.parametrize("event_dim", [1, 2])
def test_a_point_is_its_mean(event_dim: int) -> None:
    mean = torch.randn(4, 3, dtype=torch.float64)
    point = PointPosterior(mean, event_dim)
    assert torch.equal(point.rsample((5,)), mean.expand(5, 4, 3))
    assert torch.equal(point.variance, torch.zeros(4, 3, dtype=torch.float64))
    assert point.independent
    for refused in (lambda: point.log_prob(mean), point.entropy):
        with pytest.raises(Unsupported, match="Diagonal"):
            refused()


class AnyLayer:
    """The part of a contraction that a refusal reads."""

    groups, channel_dim, is_product, picks_rows = 1, -1, False, False

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        return x @ matrix

    def rows(self, x: Tensor) -> int:
        return len(x)

    square = widen = widen_triangular = mix = __call__


@pytest.mark.parametrize("example", [e for e in EXAMPLES if not e.posterior.projects(AnyLayer())], ids=str)
def test_local_noise_is_refused_with_a_remedy(example: Example) -> None:
    with pytest.raises(Unsupported, match="WeightSample"):
        example.posterior.project(AnyLayer(), torch.randn(2, example.posterior.event_shape[0], dtype=torch.float64))
