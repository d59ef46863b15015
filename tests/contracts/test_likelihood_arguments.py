"""Which shapes and values a likelihood takes, and how it refuses the others."""

from __future__ import annotations

import math

import pytest
import torch
from torch.func import vmap

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianGammaNoise,
    GaussianMixture,
    HeteroscedasticGaussian,
    Likelihood,
    Poisson,
    StudentT,
)
from bayesrule.random import Replay

NUMERIC = (
    Gaussian(), GaussianGammaNoise(), HeteroscedasticGaussian(), GaussianMixture(), StudentT(3.0, 2.0),
    Bernoulli(), Poisson(),
)  # fmt: skip
every_numeric = pytest.mark.parametrize("likelihood", NUMERIC, ids=lambda x: type(x).__name__)


@every_numeric
@pytest.mark.parametrize("leading", [(1,), (6,), (3, 6), (6, 6), (3, 1)])
def test_one_number_per_example_may_lack_its_dimension(likelihood: Likelihood, leading: tuple[int, ...]) -> None:
    outputs = torch.randn(*leading, likelihood.output_size(1))
    column = torch.randint(0, 2, (leading[-1], 1))
    assert torch.equal(likelihood.log_prob(outputs, column[:, 0]), likelihood.log_prob(outputs, column))
    assert torch.equal(likelihood.nll(outputs, column[:, 0]), likelihood.nll(outputs, column))


@every_numeric
@pytest.mark.parametrize(
    ("leading", "target_dim", "shape"),
    [
        ((6,), 1, (5,)),
        ((6,), 1, (6, 6)),
        ((6,), 1, (1, 6)),
        ((6,), 2, (6,)),
        ((6,), 2, (6, 1)),
        ((6,), 2, (1, 2)),
        ((6,), 2, (4, 6, 2)),
        ((6, 3), 1, (6, 3)),
        ((6,), 3, ()),
    ],
)
def test_other_shapes_are_refused(
    likelihood: Likelihood, leading: tuple[int, ...], target_dim: int, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeMismatch, match="targets do not fit the outputs"):
        likelihood.log_prob(torch.randn(*leading, likelihood.output_size(target_dim)), torch.zeros(shape))


@pytest.mark.parametrize("shape", [(6, 1), (5,), (6, 3), (2, 6)])
def test_class_indices_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match="targets do not fit the outputs"):
        Categorical().log_prob(torch.randn(6, 3), torch.zeros(shape, dtype=torch.int64))


def test_a_mean_needs_examples() -> None:
    with pytest.raises(ShapeMismatch, match="needs an example dimension"):
        Gaussian().nll(torch.randn(6), torch.randn(6))
    with pytest.raises(ShapeMismatch, match="needs an example dimension"):
        Gaussian().nll(torch.randn(6, 6), torch.randn(6))
    with pytest.raises(InvalidArgument, match="zero examples"):
        Categorical().nll(torch.randn(0, 3), torch.zeros(0, dtype=torch.int64))


def test_a_mixture_needs_draws() -> None:
    for outputs in (torch.randn(6, 2), torch.randn(0, 6, 2)):
        with pytest.raises(ShapeMismatch, match="leading dimension of one or more posterior draws"):
            Gaussian().mixture_log_prob(outputs, torch.randn(6, 2))
    for outputs in (torch.randn(6), torch.randn(0, 6)):
        with pytest.raises(ShapeMismatch, match="leading dimension of one or more posterior draws"):
            Gaussian().predictive_moments(outputs)


def test_outputs_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="outputs must be floating point"):
        Categorical().moments(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ShapeMismatch, match="needs 2 outputs for each number"):
        HeteroscedasticGaussian().sample(torch.randn(4, 3))
    with pytest.raises(ShapeMismatch, match="needs 1 outputs for each number"):
        Gaussian().moments(torch.tensor(1.0))
    with pytest.raises(ShapeMismatch, match=r"Use br\.Bernoulli"):
        Categorical().log_prob(torch.randn(4, 1), torch.zeros(4, dtype=torch.int64))
    one = torch.randn(4, 1)
    for read in (Categorical().sample, Categorical().moments, lambda f: Categorical().predictive_moments(f[None])):
        with pytest.raises(ShapeMismatch, match=r"two or more outputs. Got: outputs of shape .*br.Bernoulli\(\)"):
            read(one)
    assert Bernoulli().sample(one).shape == (4, 1)


@pytest.mark.parametrize(
    ("likelihood", "targets", "message"),
    [
        (Gaussian(), [[0.0, math.nan]], "finite numbers. Got: 1 other values, the first of them nan"),
        (Bernoulli(), [[0.5, 1.0]], "0 or 1. Got: 1 other values, the first of them 0.5"),
        (Bernoulli(), [[-1, 1]], "0 or 1"),
        (Poisson(), [[3, -1]], "whole numbers from 0. Got: 1 other values, the first of them -1"),
        (Poisson(), [[2.5, 1.0]], "whole numbers from 0"),
        (Poisson(), [[math.inf, 1.0]], "whole numbers from 0"),
        (Categorical(), [2], "class indices from 0 to 1. Got: 1 other values, the first of them 2"),
        (Categorical(), [-100], "class indices from 0 to 1"),
        (Categorical(), [1.0], "class indices must be int64 or int32"),
        (Categorical(), [True], "class indices must be int64 or int32"),
    ],
)
def test_impossible_targets_are_refused(likelihood: Likelihood, targets: list[float], message: str) -> None:
    outputs, values = torch.zeros(1, 2), torch.tensor(targets)
    for method in (likelihood.log_prob, likelihood.expected_log_prob, likelihood.nll):
        with pytest.raises(InvalidArgument, match=message):
            method(outputs, values)
    with pytest.raises(InvalidArgument, match=message):
        vmap(likelihood.log_prob)(outputs, values)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.float32])
def test_numeric_targets_may_have_any_dtype(dtype: torch.dtype) -> None:
    targets = torch.tensor([[1, 0]]).to(dtype)
    for likelihood in NUMERIC:
        outputs = torch.randn(1, likelihood.output_size(2), dtype=torch.float64)
        assert torch.equal(likelihood.log_prob(outputs, targets), likelihood.log_prob(outputs, targets.double()))


def test_int32_classes_equal_int64() -> None:
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    assert torch.equal(Categorical().log_prob(outputs, targets.int()), Categorical().log_prob(outputs, targets))


def test_noise_and_generator_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument, match="noise and generator both given"):
        Gaussian().sample(torch.zeros(2, 1), Replay([torch.zeros(2, 1)]), generator=torch.Generator())


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_scales_must_be_positive(value: float, as_tensor: bool) -> None:
    given = torch.tensor(value) if as_tensor else value
    for name, build in (
        ("noise_std", lambda: Gaussian(given)),
        ("prior_shape", lambda: GaussianGammaNoise(given, 1.0)),
        ("prior_rate", lambda: GaussianGammaNoise(1.0, given)),
        ("shape", lambda: StudentT(given, 1.0)),
        ("rate", lambda: StudentT(1.0, given)),
        ("min_std", lambda: HeteroscedasticGaussian(value)),
    ):
        with pytest.raises(InvalidArgument, match=f"{name} must be positive and finite"):
            build()


@pytest.mark.parametrize("components", [0, -2])
def test_a_mixture_needs_components(components: int) -> None:
    with pytest.raises(InvalidArgument, match="one or more components"):
        GaussianMixture(components)


def test_scales_of_another_kind_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="at most 1 dimensions"):
        Gaussian(torch.ones(2, 2))
    with pytest.raises(ShapeMismatch, match="at most 0 dimensions"):
        GaussianGammaNoise(torch.ones(2), 1.0)
    with pytest.raises(ShapeMismatch, match="and an entry"):
        Gaussian(torch.ones(0))
    with pytest.raises(InvalidArgument, match="floating point"):
        Gaussian(torch.tensor(1))
    for call in (Gaussian(torch.ones(3)).moments, Gaussian(torch.ones(3)).sample):
        with pytest.raises(ShapeMismatch, match="one entry for each entry of the target"):
            call(torch.zeros(5, 2))
