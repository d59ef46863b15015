"""Distribution functions and quantiles of mixtures over draws and components, against scipy."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

import bayesrule as br
from largest_tensor import LargestTensor
from predictive_cases import CASES, EXAMPLES, GAUSSIAN, close, gaussian, mixture, outputs_of

LEVELS = (1e-4, 0.05, 0.5, 0.9, 0.9999)


@pytest.mark.parametrize("name", [*GAUSSIAN, "gaussian mixture"])
def test_cdf_averages_the_draws_distribution_functions(name: str) -> None:
    case = CASES[name]
    got = case.predictive.cdf(case.targets)
    assert got.shape == case.targets.shape
    close(got, case.frozen.cdf(case.targets.numpy()).mean(0))


def test_mixture_quantiles_are_those_of_all_draws_and_components() -> None:
    case = CASES["gaussian mixture"]
    got = case.predictive.quantile(torch.tensor(LEVELS, dtype=torch.float64))
    assert got.shape == (len(LEVELS), EXAMPLES, 2)
    for i, level in enumerate(LEVELS):
        for place in np.ndindex(EXAMPLES, 2):

            def excess(y: float, place: tuple[int, ...] = place, level: float = level) -> float:
                return float(case.frozen.cdf(y)[:, *place].mean() - level)

            root = optimize.brentq(excess, -1e4, 1e4, xtol=1e-13, rtol=1e-14)
            # Between far components the distribution function is flat: there its value is compared, not its argument.
            found = got[i, *place].item()
            assert abs(excess(found)) < 1e-14 or found == pytest.approx(root, rel=1e-9)
    close(case.predictive.quantile(0.05), got[1].numpy())


@pytest.mark.parametrize("name", ["gaussian", "heteroscedastic", "gaussian mixture"])
def test_cdf_inverts_the_quantile(name: str) -> None:
    p = CASES[name].predictive
    for level in LEVELS:
        close(p.cdf(p.quantile(level)), np.full((EXAMPLES, 2), level), 1e-9)


def test_weights_choose_the_component_of_a_quantile() -> None:
    """Far components of weights 0.2 and 0.8: levels 0.1 and 0.6 are the medians of one and the other."""
    outputs = torch.tensor([-1e6, 1e6, 0.0, 0.0, np.log(0.2), np.log(0.8)], dtype=torch.float64)
    p = br.Predictive(outputs.expand(3, 1, -1), br.GaussianMixture(components=2))
    close(p.quantile(0.1), [[-1e6]], 1e-12)
    close(p.quantile(0.6), [[1e6]], 1e-12)
    close(p.quantile(0.3), [[1e6 + stats.norm.ppf(1 / 8)]], 1e-12)


def test_one_component_is_a_gaussian() -> None:
    outputs = outputs_of(2)
    spread = torch.full_like(outputs, np.log(0.3))
    one = br.Predictive(torch.cat([outputs, spread, outputs], -1), br.GaussianMixture(components=1))
    plain, targets = br.Predictive(outputs, gaussian(0.3)), outputs_of(2, seed=2)[0]
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    close(one.cdf(targets), plain.cdf(targets).numpy())
    close(one.cdf(one.quantile(0.3)), plain.cdf(plain.quantile(0.3)).numpy(), 1e-10)
    close(one.quantile(levels)[[0, -1]], plain.quantile(levels)[[0, -1]].numpy(), 1e-8)


def test_further_dimensions_are_examples() -> None:
    outputs = torch.randn(4, 3, 5, 18, dtype=torch.float64)
    targets, levels = torch.randn(3, 5, 2, dtype=torch.float64), torch.tensor([0.2, 0.7], dtype=torch.float64)
    p, flat = (br.Predictive(each, br.GaussianMixture()) for each in (outputs, outputs.flatten(1, 2)))
    close(p.cdf(targets), mixture(outputs.numpy()).cdf(targets.numpy()).mean(0))
    close(p.quantile(levels), flat.quantile(levels).reshape(2, 3, 5, 2).numpy())


def test_one_number_per_example_may_lack_its_dimension() -> None:
    p = br.Predictive(outputs_of(9), br.GaussianMixture())
    column = torch.linspace(-1, 1, EXAMPLES, dtype=torch.float64).unsqueeze(-1)
    assert torch.equal(p.cdf(column[:, 0]), p.cdf(column))


def test_chunks_of_examples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p, levels = CASES["gaussian mixture"].predictive, torch.tensor(LEVELS, dtype=torch.float64)
    whole = p.quantile(levels), p.quantile(0.3)
    module = importlib.import_module("bayesrule.predict.mixture_quantile")  # `bayesrule.predict` is also the function
    monkeypatch.setattr(module, "ENTRIES_TOGETHER", 250)
    close(p.quantile(levels), whole[0].numpy(), 1e-11)  # sums are rounded in another order, and tails are flat
    close(p.quantile(0.3), whole[1].numpy(), 1e-12)


def test_no_tensor_is_larger_than_the_outputs() -> None:
    """Seven levels over 160 draws of 3000 examples at once would make one 7/3 their size."""
    outputs = torch.randn(160, 3000, 9)
    p = br.Predictive(outputs, br.GaussianMixture())
    with LargestTensor() as largest:
        p.quantile(torch.linspace(0.1, 0.9, 7))
        p.cdf(torch.zeros(3000, 1))
    assert largest.entries <= outputs.numel()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_is_near_float64(dtype: torch.dtype) -> None:
    rough, targets = outputs_of(18).to(dtype), outputs_of(2)[0]
    found, exact = (br.Predictive(each, br.GaussianMixture()) for each in (rough, rough.double()))
    assert found.cdf(targets).dtype == found.quantile(0.3).dtype == torch.float32
    near(found.cdf(targets), exact.cdf(targets))
    near(exact.cdf(found.quantile(0.3).double()), torch.full((EXAMPLES, 2), 0.3))


def near(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=2e-6)
