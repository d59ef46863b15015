"""The contract of an exponential family, over every registered one."""

from __future__ import annotations

import inspect

import pytest
import scipy.stats
import torch
import torch.distributions as D
from expfam_oracles import ORACLES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from bayesrule import expfam
from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam import FAMILIES, Expectation, ExponentialFamily, GaussianFixed, Natural, gradient_in_expectation
from expfam_members import DOUBLE, FAILURE_RATE, assert_same, every_family, generator, member

seeds = st.integers(0, 2**32 - 1)
batches = st.sampled_from([(), (1,), (3,), (2, 2)])
dims = st.integers(1, 4)


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
    back = family.to_natural(expectation)
    assert_same(back, natural, 1e-9)
    assert_same(family.to_expectation(back), expectation, 1e-9)


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
