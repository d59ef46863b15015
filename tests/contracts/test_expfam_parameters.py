"""Single exponential families: their domains, their usual parameters and their draws."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam import (
    Bernoulli,
    Categorical,
    ChainGaussian,
    Dirichlet,
    Expectation,
    ExponentialFamily,
    FiniteMixture,
    Gamma,
    GaussianDiagonal,
    GaussianFixed,
    GaussianFull,
    Natural,
    NormalGamma,
    NormalWishart,
)
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


def test_usual_parameters_of_the_larger_families() -> None:
    """λ itself, written out; the oracles of the contract take it apart the other way."""
    one = DOUBLE + 1
    probabilities = torch.tensor([0.2, 0.3, 0.5]).double()
    categorical = Categorical().from_probabilities(probabilities)
    assert_close(categorical["logits"], torch.tensor([0.4, 0.6]).double().log())
    assert_close(Categorical().to_probabilities(categorical), probabilities)
    assert_close(Dirichlet().from_concentration(3 * probabilities)["log"], 3 * probabilities - 1)
    gamma = NormalGamma().from_usual(2 * one, 3 * one, 4 * one, 5 * one)
    assert_close(gamma.blocks, {"log": 3.5 * one, "precision": -11 * one, "linear": 6 * one, "quadratic": -1.5 * one})
    assert_close(NormalGamma().to_usual(gamma), (2 * one, 3 * one, 4 * one, 5 * one))
    mean, scale = torch.tensor([1.0, -1.0]).double(), torch.eye(2).double()
    wishart = NormalWishart().from_usual(mean, 2 * one, 5 * one, scale)
    assert_close(wishart["precision"], torch.tensor([[-1.5, 1.0], [1.0, -1.5]]).double())
    assert_close(wishart["log"], 1.5 * one)
    assert_close(NormalWishart().to_usual(wishart), (mean, 2 * one, 5 * one, scale))


@pytest.mark.parametrize(
    ("family", "natural"),
    [
        (Dirichlet(), Natural(log=torch.tensor([-1.0, 2.0]))),
        (NormalGamma(), Natural(**dict.fromkeys(("log", "precision", "linear", "quadratic"), torch.tensor(-1.0)))),
        (
            ChainGaussian(),
            Natural(linear=torch.ones(2, 1), quadratic=-0.5 * torch.ones(2, 1, 1), link=1.5 * torch.ones(1, 1, 1)),
        ),
    ],
)
def test_check_refuses_the_outside_of_coupled_domains(family: ExponentialFamily, natural: Natural) -> None:
    with pytest.raises(InvalidArgument, match="must have"):
        family.check(natural)


def test_sizes_that_differ_by_one_are_checked() -> None:
    with pytest.raises(ShapeMismatch, match="length-1"):
        ChainGaussian().check(
            Natural(linear=torch.ones(3, 1), quadratic=-torch.ones(3, 1, 1), link=torch.zeros(1, 1, 1))
        )
    with pytest.raises(InvalidArgument, match="sum to 1"):
        Categorical().from_probabilities(torch.tensor([0.5, 0.6]))


def test_mixture_weights_there_and_back() -> None:
    family, naturals = FiniteMixture(GaussianFull(), 2), member(GaussianFull(), seed=60, batch=(2,))
    weights = torch.tensor([0.3, 0.7]).double()
    got, components = family.to_weights(family.from_weights(weights, naturals))
    assert_close(got, weights)
    assert_close(components.blocks, naturals.blocks)


def test_a_wishart_far_from_its_start_is_found() -> None:
    for degrees in (2.001, 2.5, 50.0, 1e4):
        usual = torch.ones(2).double(), DOUBLE + 0.1, DOUBLE + degrees, torch.eye(2).double()
        natural = NormalWishart().from_usual(*usual)
        back = NormalWishart().to_natural(NormalWishart().to_expectation(natural))
        assert_close(back.blocks, natural.blocks, rtol=1e-6, atol=1e-6)
    expectation = NormalWishart().to_expectation(member(NormalWishart(), seed=61))
    impossible = Expectation(**{**expectation.blocks, "log": expectation["log"] + 100})
    with pytest.raises(InvalidArgument, match="concave"):
        NormalWishart().to_natural(impossible)
