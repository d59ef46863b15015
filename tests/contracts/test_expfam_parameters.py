"""Single exponential families: their domains, their usual parameters and their draws."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam import Bernoulli, ExponentialFamily, Gamma, GaussianDiagonal, GaussianFixed, GaussianFull, Natural
from bayesrule.random import Replay
from expfam_members import DOUBLE, FAILURE_RATE, generator, member


@pytest.mark.parametrize(
    ("family", "natural"),
    [
        (GaussianDiagonal(), Natural(linear=torch.ones(2), quadratic=torch.tensor([-1.0, 0.0]))),
        (GaussianFull(), Natural(linear=torch.ones(2), quadratic=torch.tensor([[-1.0, 2.0], [2.0, -1.0]]))),
        (GaussianFull(), Natural(linear=torch.ones(2), quadratic=torch.tensor([[-1.0, 0.5], [0.0, -1.0]]))),
        (Gamma(), Natural(log=torch.tensor(-1.0), linear=torch.tensor(-1.0))),
        (Gamma(), Natural(log=torch.tensor(1.0), linear=torch.tensor(0.0))),
    ],
)
def test_check_refuses_the_boundary_and_the_outside(family: ExponentialFamily, natural: Natural) -> None:
    with pytest.raises(InvalidArgument, match="must have"):
        family.check(natural)


def test_check_refuses_sizes_that_disagree() -> None:
    with pytest.raises(ShapeMismatch, match=r"\*batch, dim, dim"):
        GaussianFull().check(Natural(linear=torch.ones(2), quadratic=-torch.eye(3)))
    with pytest.raises(ShapeMismatch, match="must have the shapes"):
        GaussianFull().check(Natural(linear=torch.ones(2), quadratic=-torch.ones(2)))
    with pytest.raises(ShapeMismatch, match="'dim': 2"):
        GaussianFixed(torch.eye(2)).check(Natural(linear=torch.ones(3)))
    with pytest.raises(InvalidArgument, match="needs the sizes"):
        GaussianFull().random_natural(generator(0), DOUBLE)


def test_usual_parameters_there_and_back() -> None:
    mean, precision = torch.tensor([[1.0, -2.0]]).double(), torch.tensor([[0.5, 3.0]]).double()
    matrix = torch.tensor([[[2.0, 0.3], [0.3, 1.0]]]).double()
    assert_close(GaussianFixed(matrix[0]).to_mean(GaussianFixed(matrix[0]).from_mean(mean)), mean)
    for family, scale in ((GaussianDiagonal(), precision), (GaussianFull(), matrix)):
        assert_close(family.to_mean_precision(family.from_mean_precision(mean, scale)), (mean, scale))
    assert_close(Gamma().to_shape_rate(Gamma().from_shape_rate(precision, 2 * precision)), (precision, 2 * precision))
    probability = torch.tensor([0.1, 0.5, 0.9]).double()
    assert_close(Bernoulli().to_probability(Bernoulli().from_probability(probability)), probability)


def test_usual_parameters_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="below 0"):
        GaussianDiagonal().from_mean_precision(torch.ones(2), torch.tensor([1.0, -1.0]))
    with pytest.raises(InvalidArgument, match="negative definite"):
        GaussianFull().from_mean_precision(torch.ones(2), torch.ones(2, 2) - 0.1 * torch.eye(2))
    with pytest.raises(InvalidArgument, match="above -1"):
        Gamma().from_shape_rate(torch.tensor(0.0), torch.tensor(1.0))
    with pytest.raises(InvalidArgument, match="between 0 and 1"):
        Bernoulli().from_probability(torch.tensor([0.5, 1.0]))
    with pytest.raises(InvalidArgument, match="positive definite"):
        GaussianFixed(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(InvalidArgument, match="positive definite"):
        GaussianFixed(torch.tensor([[1.0, 0.5], [0.0, 1.0]]))


def test_table_2() -> None:
    """The natural parameters themselves, where a consistent error in λ and T would cancel elsewhere."""
    mean, precision = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    assert_close(GaussianFixed(matrix).from_mean(mean).blocks, {"linear": torch.tensor([1.0, -1.5])})
    assert_close(
        GaussianDiagonal().from_mean_precision(mean, precision).blocks,
        {"linear": torch.tensor([0.5, -6.0]), "quadratic": torch.tensor([-0.25, -1.5])},
    )
    assert_close(
        GaussianFull().from_mean_precision(mean, matrix).blocks,
        {"linear": torch.tensor([1.0, -1.5]), "quadratic": torch.tensor([[-1.0, -0.25], [-0.25, -0.5]])},
    )
    probability = torch.tensor([0.8])
    assert_close(Bernoulli().from_probability(probability)["linear"], torch.tensor([0.5 * np.log(4.0)]).float())


@pytest.mark.parametrize("shape", [0.05, 0.7, 1.0, 4.0, 300.0])
def test_gamma_draws_follow_the_distribution(shape: float) -> None:
    natural = Gamma().from_shape_rate(DOUBLE + shape, DOUBLE + 2.5)
    draws = Gamma().sample(natural, generator(14), sample_shape=(20_000,))
    result = scipy.stats.kstest(draws.numpy(), scipy.stats.gamma(shape, scale=1 / 2.5).cdf)
    assert result.pvalue > FAILURE_RATE / 5


def test_gaussian_draws_are_an_affine_map_of_their_noise() -> None:
    natural, noise = member(GaussianFull(), seed=15), torch.randn(6, 3, dtype=torch.float64)
    mean, precision = GaussianFull().to_mean_precision(natural)
    residual = GaussianFull().sample(natural, Replay([noise]), sample_shape=(6,)) - mean
    assert_close((residual @ precision * residual).sum(-1), noise.square().sum(-1), rtol=1e-12, atol=1e-12)
