"""The contract of an exponential family, over every registered one, and of the two coordinate types."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
import torch
import torch.distributions as D
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from bayesrule import expfam
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.expfam import (
    FAMILIES,
    Bernoulli,
    Expectation,
    ExponentialFamily,
    Gamma,
    GaussianDiagonal,
    GaussianFixed,
    GaussianFull,
    Natural,
    gradient_in_expectation,
    inner,
    solve_natural,
)
from bayesrule.random import FromGenerator, Law, Replay

FAILURE_RATE = 1e-6
DOUBLE = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Oracle:
    """An independent account of q_λ: a torch distribution, θ as its value, and E[T] by closed form or quadrature."""

    distribution: Callable[[ExponentialFamily, Natural], D.Distribution]
    moments: Callable[[D.Distribution], dict[str, Tensor]]
    encode: Callable[[Tensor], Tensor] = lambda theta: theta


def gaussian(precision: Tensor, linear: Tensor) -> D.MultivariateNormal:
    mean = torch.linalg.solve(precision, linear.unsqueeze(-1)).squeeze(-1)
    return D.MultivariateNormal(mean, precision_matrix=precision)


def diagonal_gaussian(_: ExponentialFamily, natural: Natural) -> D.Distribution:
    variance = -1 / (2 * natural["quadratic"])
    return D.Independent(D.Normal(variance * natural["linear"], variance.sqrt()), 1)


def full_moments(q: D.MultivariateNormal) -> dict[str, Tensor]:
    return {"linear": q.mean, "quadratic": q.mean.unsqueeze(-1) @ q.mean.unsqueeze(-2) + q.covariance_matrix}


def expected_log_of_gamma(shape: float, rate: float) -> float:
    """∫ log θ q(θ) dθ over t = log θ, in pieces around the bulk so that no piece is missed."""
    law = scipy.stats.loggamma(shape, loc=-np.log(rate))
    points = [law.ppf(p) for p in (1e-13, 1e-6, 1e-2, 0.5, 0.99, 1 - 1e-6)] + [law.isf(1e-13)]
    options = {"epsabs": 1e-13, "epsrel": 1e-13, "limit": 200}
    return sum(scipy.integrate.quad(lambda t: t * law.pdf(t), *piece, **options)[0] for piece in pairwise(points))


def gamma_moments(q: D.Gamma) -> dict[str, Tensor]:
    logs = np.vectorize(expected_log_of_gamma)(q.concentration.numpy(), q.rate.numpy())
    return {"linear": q.mean, "log": torch.as_tensor(logs, dtype=torch.float64)}


ORACLES: dict[type[ExponentialFamily], Oracle] = {
    GaussianFixed: Oracle(
        lambda family, natural: gaussian(family.precision, natural["linear"]), lambda q: {"linear": q.mean}
    ),
    GaussianDiagonal: Oracle(
        diagonal_gaussian, lambda q: {"linear": q.mean, "quadratic": q.mean.square() + q.variance}
    ),
    GaussianFull: Oracle(lambda _, natural: gaussian(-2 * natural["quadratic"], natural["linear"]), full_moments),
    Bernoulli: Oracle(
        lambda _, natural: D.Independent(D.Bernoulli(logits=2 * natural["linear"]), 1),
        lambda q: {"linear": q.mean - (1 - q.mean)},
        encode=lambda theta: (theta + 1) / 2,
    ),
    Gamma: Oracle(lambda _, natural: D.Gamma(natural["log"] + 1, -natural["linear"]), gamma_moments),
}

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
seeds = st.integers(0, 2**32 - 1)
batches = st.sampled_from([(), (1,), (3,), (2, 2)])
dims = st.integers(1, 4)


@dataclass(frozen=True)
class Scaled:
    """Noise spread by a factor, to move λ away from the middle of Ω."""

    source: FromGenerator
    factor: float

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        return self.factor * self.source(shape, law, like)


def generator(seed: int) -> FromGenerator:
    return FromGenerator(torch.Generator().manual_seed(seed))


def member(
    family: ExponentialFamily, seed: int, batch: tuple[int, ...] = (), dim: int = 3, spread: float = 1.0
) -> Natural:
    return family.check(family.random_natural(Scaled(generator(seed), spread), DOUBLE, batch, dim=dim))


def assert_same(got: Natural | Expectation, wanted: Natural | Expectation, tolerance: float) -> None:
    assert type(got) is type(wanted)
    assert_close(got.blocks, wanted.blocks, rtol=tolerance, atol=tolerance)


# --- every family -------------------------------------------------------------------------------------------------


def test_every_exported_family_is_registered_and_has_an_oracle() -> None:
    exported = {
        thing
        for thing in vars(expfam).values()
        if inspect.isclass(thing) and issubclass(thing, ExponentialFamily) and not inspect.isabstract(thing)
    }
    assert exported == {type(family) for family in FAMILIES} == set(ORACLES)


@every_family
def test_what_follows_from_the_obligations_is_never_overridden(family: ExponentialFamily) -> None:
    final = {name for name, method in vars(ExponentialFamily).items() if getattr(method, "__final__", False)}
    assert {"to_expectation", "log_prob", "entropy", "kl"} <= final
    assert not final & set(vars(type(family)))


@every_family
@settings(max_examples=40)
@given(seed=seeds, batch=batches, dim=dims, spread=st.floats(0.0, 2.0))
def test_natural_to_expectation_and_back(
    family: ExponentialFamily, seed: int, batch: tuple[int, ...], dim: int, spread: float
) -> None:
    natural = member(family, seed, batch, dim, spread)
    expectation = family.to_expectation(natural)
    assert_same(family.to_natural(expectation), natural, 1e-9)
    assert_same(family.to_expectation(family.to_natural(expectation)), expectation, 1e-9)


@every_family
def test_gradient_of_log_partition_is_the_mean_of_the_statistics(family: ExponentialFamily) -> None:
    natural = member(family, seed=1, batch=(5,))
    oracle = ORACLES[type(family)]
    moments = oracle.moments(oracle.distribution(family, natural))
    assert_same(family.to_expectation(natural), Expectation(**moments), 1e-10)


@every_family
@settings(max_examples=40)
@given(seed=seeds, batch=batches, dim=dims)
def test_log_prob_and_entropy_are_those_of_the_distribution(
    family: ExponentialFamily, seed: int, batch: tuple[int, ...], dim: int
) -> None:
    natural = member(family, seed, batch, dim)
    oracle = ORACLES[type(family)]
    distribution = oracle.distribution(family, natural)
    theta = family.sample(natural, generator(seed + 1), sample_shape=(7,))
    assert theta.shape == (7, *distribution.batch_shape, *distribution.event_shape)
    assert_close(family.log_prob(natural, theta), distribution.log_prob(oracle.encode(theta)), rtol=1e-10, atol=1e-10)
    assert_close(family.entropy(natural), distribution.entropy(), rtol=1e-10, atol=1e-10)


@every_family
@settings(max_examples=40)
@given(seed=seeds, batch=batches, dim=dims)
def test_kl_is_the_kl_and_zero_only_for_equals(
    family: ExponentialFamily, seed: int, batch: tuple[int, ...], dim: int
) -> None:
    p, q = member(family, seed, batch, dim), member(family, seed + 1, batch, dim)
    distribution = ORACLES[type(family)].distribution
    wanted = D.kl_divergence(distribution(family, p), distribution(family, q))
    assert_close(family.kl(p, q), wanted, rtol=1e-9, atol=1e-9)
    assert (family.kl(p, q) > 0).all()
    assert (family.kl(p, p) == 0).all()


@every_family
def test_kl_broadcasts_over_batches(family: ExponentialFamily) -> None:
    p, q = member(family, seed=2, batch=(4,)), member(family, seed=3)
    each = [family.kl(p.map(lambda value, i=i: value[i]), q) for i in range(4)]
    assert_close(family.kl(p, q), torch.stack(each), rtol=1e-12, atol=1e-12)


@every_family
def test_sample_means_of_the_statistics_are_the_expectation(family: ExponentialFamily) -> None:
    draws, natural = 100_000, member(family, seed=4, batch=(2,))
    statistics = family.statistics(family.sample(natural, generator(5), sample_shape=(draws,)))
    expectation = family.to_expectation(natural)
    entries = sum(value.numel() for _, value in expectation.items)
    limit = scipy.stats.norm.isf(FAILURE_RATE / (2 * entries * len(FAMILIES)))
    for name, value in statistics.items:
        standard_error = value.std(0) / draws**0.5
        assert ((value.mean(0) - expectation[name]).abs() < limit * standard_error).all()


@every_family
def test_to_expectation_runs_under_vmap(family: ExponentialFamily) -> None:
    natural = member(family, seed=6, batch=(3,))
    assert_same(torch.func.vmap(family.to_expectation)(natural), family.to_expectation(natural), 1e-12)


@every_family
def test_to_expectation_and_to_natural_are_differentiable_twice(family: ExponentialFamily) -> None:
    natural = member(family, seed=7, dim=2)
    expectation = family.to_expectation(natural)
    names = natural.names

    def forward(*blocks: Tensor) -> tuple[Tensor, ...]:
        point = family.space.project(Natural(**dict(zip(names, blocks, strict=True))))
        return tuple(value for _, value in family.to_expectation(point).items)

    def backward(*blocks: Tensor) -> tuple[Tensor, ...]:
        symmetric = family.space.project(Natural(**dict(zip(names, blocks, strict=True))))
        return tuple(value for _, value in family.to_natural(Expectation(**symmetric.blocks)).items)

    for function, point in ((forward, natural), (backward, expectation)):
        inputs = tuple(value.clone().requires_grad_() for _, value in point.items)
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


@every_family
def test_gradient_of_the_entropy_in_the_expectation(family: ExponentialFamily) -> None:
    """App. B: ∇_μ H = −λ − ∇_μ E_q[log h]."""
    natural = member(family, seed=8, batch=(2,))
    entropy = gradient_in_expectation(family, lambda mu: family.entropy(family.to_natural(mu)), natural)
    base = gradient_in_expectation(family, family.base.expected_log_density, natural)
    assert_same(entropy, -natural - base, 1e-9)
    assert_same(family.base.gradient(natural), base, 1e-12)


@every_family
def test_gradient_in_expectation_of_a_linear_function_is_its_coefficients(family: ExponentialFamily) -> None:
    natural, coefficients = member(family, seed=9), member(family, seed=10)
    got = gradient_in_expectation(family, lambda mu: family.inner(coefficients, mu), natural)
    assert_same(got, coefficients, 1e-12)


@every_family
def test_check_refuses_values_shapes_and_names_that_do_not_fit(family: ExponentialFamily) -> None:
    natural = member(family, seed=11, batch=(2,))
    name, value = natural.items[-1]
    spoiled = value.clone()
    spoiled[1] = torch.nan
    with pytest.raises(InvalidArgument, match=f"{type(family).__name__} must have .*{name}"):
        family.check(Natural(**{**natural.blocks, name: spoiled}))
    assert family.valid(Natural(**{**natural.blocks, name: spoiled})).tolist() == [True, False]
    with pytest.raises(InvalidArgument, match="names"):
        family.check(Natural(**natural.blocks, other=DOUBLE))
    if len(natural.items) > 1:
        with pytest.raises(ShapeMismatch, match="must have the shapes"):
            family.check(Natural(**{**natural.blocks, name: torch.cat([value, value])}))


@every_family
def test_float32_stays_float32(family: ExponentialFamily) -> None:
    if isinstance(family, GaussianFixed):
        family = GaussianFixed(family.precision.float())
    natural = member(family, seed=12).map(torch.Tensor.float)
    back = family.to_natural(family.to_expectation(natural))
    theta = family.sample(natural, generator(13))
    assert {value.dtype for _, value in back.items} == {theta.dtype} == {torch.float32}
    assert family.log_prob(natural, theta).dtype == torch.float32
    assert_same(back, natural, 1e-3)


# --- single families ----------------------------------------------------------------------------------------------


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


# --- Newton's method for μ → λ -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [3e-9, 3.0, 3e9])
@pytest.mark.parametrize("shape", [1e-3, 0.1, 1.0, 30.0, 1e4, 1e5])
def test_newton_agrees_with_bracketed_root_finding(shape: float, mean: float) -> None:
    log_mean = scipy.special.digamma(shape) + np.log(mean) - np.log(shape)
    gap = np.log(mean) - log_mean
    root = scipy.optimize.brentq(
        lambda log_shape: log_shape - scipy.special.digamma(np.exp(log_shape)) - gap, -12, 14, xtol=1e-15, rtol=1e-15
    )
    got, rate = Gamma().to_shape_rate(Gamma().to_natural(Expectation(log=DOUBLE + log_mean, linear=DOUBLE + mean)))
    assert_close(got, DOUBLE + np.exp(root), rtol=1e-13 / gap + 1e-12, atol=0)  # the data hold `gap` no better
    assert_close(got / rate, DOUBLE + mean, rtol=1e-12, atol=0)


def test_newton_comes_back_from_a_far_start() -> None:
    wanted = Gamma().from_shape_rate(torch.tensor([0.01, 2.0, 80.0]).double(), torch.tensor([7.0, 0.1, 1.0]).double())
    start = Gamma().from_shape_rate(torch.tensor([90.0, 90.0, 0.02]).double(), torch.tensor([0.1, 50.0, 9.0]).double())
    assert_same(solve_natural(Gamma(), Gamma().to_expectation(wanted), start), wanted, 1e-9)


def test_newton_on_vectors_and_batches() -> None:
    wanted = member(Bernoulli(), seed=16, batch=(2, 2))
    start = wanted.map(torch.zeros_like)
    assert_same(solve_natural(Bernoulli(), Bernoulli().to_expectation(wanted), start), wanted, 1e-10)


def test_newton_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InvalidArgument, match=r"E\[log θ\] < log E\[θ\]"):
        Gamma().to_natural(Expectation(log=DOUBLE + 1.0, linear=DOUBLE + 2.0))
    start = Gamma().from_shape_rate(DOUBLE + 1.0, DOUBLE + 1.0)
    with pytest.raises(InvalidArgument, match="no natural parameter"):
        solve_natural(Gamma(), Expectation(log=DOUBLE + 1.0, linear=DOUBLE + 2.0), start)
    natural = member(GaussianFull(), seed=17)
    with pytest.raises(Unsupported, match="symmetric block"):
        solve_natural(GaussianFull(), GaussianFull().to_expectation(natural), natural)


# --- coordinates --------------------------------------------------------------------------------------------------


def test_the_two_coordinate_systems_do_not_mix() -> None:
    natural, expectation = Natural(linear=torch.ones(2)), Expectation(linear=torch.ones(2))
    for mixed in (
        lambda: natural + expectation,
        lambda: natural - expectation,
        lambda: expectation + natural,
        lambda: natural + 1.0,
    ):
        with pytest.raises(TypeError, match="different spaces"):
            mixed()
    for wrong in (lambda: natural * natural, lambda: inner(expectation, natural), lambda: inner(natural, natural)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError, match="by a number only"):
        natural * torch.ones(2)


def test_arithmetic_needs_the_same_blocks() -> None:
    natural = Natural(linear=torch.ones(2))
    with pytest.raises(InvalidArgument, match="names"):
        natural + Natural(quadratic=torch.ones(2))
    with pytest.raises(ShapeMismatch, match="another shape"):
        natural + Natural(linear=torch.ones(1))


def test_arithmetic_is_that_of_a_vector_space() -> None:
    a, b = member(GaussianFull(), seed=18), member(GaussianFull(), seed=19)
    combined = 2 * a - b * 0.5 + torch.tensor(3.0) * -b
    for name, value in combined.items:
        assert_close(value, 2 * a[name] - 3.5 * b[name], rtol=1e-14, atol=1e-14)


def test_inner_product_keeps_the_batch() -> None:
    family, natural = GaussianFull(), member(GaussianFull(), seed=20, batch=(4,))
    expectation = family.to_expectation(natural)
    wanted = [
        (natural1 * expectation1).sum() + torch.trace(natural2 @ expectation2)
        for natural1, natural2, expectation1, expectation2 in zip(
            natural["linear"], natural["quadratic"], expectation["linear"], expectation["quadratic"], strict=True
        )
    ]
    assert_close(family.inner(natural, expectation), torch.stack(wanted), rtol=1e-12, atol=1e-12)
    assert_close(inner(natural, expectation), torch.stack(wanted).sum(), rtol=1e-12, atol=1e-12)


def test_points_are_frozen_and_can_be_copied() -> None:
    natural = Natural(linear=torch.ones(2, requires_grad=True) * 2, log=torch.zeros(()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        natural.items = ()
    natural.blocks.clear()
    assert natural.names == ("linear", "log")
    assert not natural.detach()["linear"].requires_grad
    for clone in (copy.deepcopy(natural.detach()), pickle.loads(pickle.dumps(natural.detach()))):
        assert_same(clone, natural.detach(), 0.0)
