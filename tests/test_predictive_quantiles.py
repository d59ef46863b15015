"""Quantiles and samples of a prediction, against scipy and numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

import bayesrule as br
from bayesrule.likelihoods import Likelihood
from predictive_cases import CASES, CLASSES, DRAWS, EXAMPLES, GAUSSIAN, Case, close, gaussian, outputs_of

FAILURE_RATE = 1e-6


LEVELS = (1e-4, 0.05, 0.5, 0.9, 0.9999)


@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_quantiles_are_those_of_the_mixture(name: str) -> None:
    case = CASES[name]
    got = case.predictive.quantile(torch.tensor(LEVELS, dtype=torch.float64))
    means, stds = (np.broadcast_to(each, (DRAWS, EXAMPLES, 2)) for each in (case.frozen.mean(), case.frozen.std()))
    for i, level in enumerate(LEVELS):
        for place in np.ndindex(EXAMPLES, 2):
            components = stats.norm(means[:, *place], stds[:, *place])

            def excess(y: float, components: Any = components, level: float = level) -> float:
                return components.cdf(y).mean() - level

            own = components.ppf(level)  # the mixture's quantile lies between those of its components
            root = optimize.brentq(excess, own.min() - 1, own.max() + 1, xtol=1e-13, rtol=1e-14)
            # Between far components the distribution function is flat: there its value is compared, not its argument.
            found = got[i, *place].item()
            assert abs(excess(found)) < 1e-14 or found == pytest.approx(root, rel=1e-9)
    close(case.predictive.quantile(0.05), got[1].numpy())


def test_the_quantile_of_far_components_lies_in_the_right_one() -> None:
    outputs = torch.tensor([-1e6, 0.0, 1e6], dtype=torch.float64).reshape(3, 1, 1)
    p = br.Predictive(outputs, gaussian(0.5))
    close(p.quantile(0.5), [[0.0]], 1e-9)
    close(p.quantile(1 / 6), [[-1e6]], 1e-9)
    close(p.quantile(5 / 6), [[1e6]], 1e-9)
    inside = -1e6 + 0.5 * stats.norm.ppf(0.3)
    close(p.quantile(0.1), [[inside]], 1e-12)


def test_one_draw_has_the_quantiles_of_its_normal() -> None:
    p = br.Predictive(outputs_of(2)[:1], gaussian(0.3))
    close(p.quantile(0.975), stats.norm(outputs_of(2)[0].numpy(), 0.3).ppf(0.975), 1e-10)


@pytest.mark.parametrize("name", ["poisson", "student t"])
def test_other_quantiles_are_those_of_the_samples(name: str) -> None:
    p = CASES[name].predictive
    levels = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)
    close(p.quantile(levels), np.quantile(p.samples().numpy(), levels.numpy(), axis=0))
    close(p.quantile(0.3), np.quantile(p.samples().numpy(), 0.3, axis=0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("likelihood", [br.Gaussian(0.3), br.Poisson()])
def test_half_precision_outputs_keep_the_level(dtype: torch.dtype, likelihood: Likelihood) -> None:
    rough = outputs_of(2).to(dtype)
    got, expected = (br.Predictive(each, likelihood).quantile(0.999) for each in (rough, rough.float()))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("case", [*CASES.values(), Case(br.Categorical(), outputs_of(4), CLASSES, stats.norm)])
def test_samples_are_one_target_for_each_draw_by_the_seed(case: Case) -> None:
    first, again = case.predictive.samples(), case.predictive.samples()
    other = br.Predictive(case.outputs, case.likelihood, seed=1).samples()
    assert first.shape == (DRAWS, *case.targets.shape)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    case.likelihood.log_prob(case.outputs, first)  # refuses values outside the support


def test_samples_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    before = CASES["gaussian"].predictive.samples()
    torch.manual_seed(7)
    assert torch.equal(before, CASES["gaussian"].predictive.samples())
    torch.manual_seed(0)
    assert torch.equal(state, torch.get_rng_state())


def test_each_sample_follows_its_own_draw() -> None:
    outputs = outputs_of(2)
    sharp = br.Predictive(outputs, gaussian(1e-9)).samples()
    close(sharp, outputs.numpy(), 1e-7)
    sure = br.Predictive(1e3 * outputs, br.Categorical()).samples()
    assert torch.equal(sure, outputs.argmax(-1))


def test_samples_have_the_moments_of_the_mixture() -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(20_000, 2, 1, generator=generator, dtype=torch.float64)
    p = br.Predictive(outputs, gaussian(0.7))
    samples, tests = p.samples(), 4
    z = stats.norm.isf(FAILURE_RATE / tests / 2)
    noise = (samples - outputs) / 0.7  # given the draws, independent standard normals
    assert noise.mean(0).abs().max() < z / math.sqrt(len(outputs))
    low, high = (stats.chi2(len(outputs)).ppf(q) for q in (FAILURE_RATE / tests / 2, 1 - FAILURE_RATE / tests / 2))
    assert low < noise.square().sum(0).min()
    assert noise.square().sum(0).max() < high
