"""RMSE, coverage and CRPS against scikit-learn, quadrature, loops over pairs and torchmetrics."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, stats
from sklearn.metrics import root_mean_squared_error
from torch import Tensor
from torchmetrics.functional.regression import continuous_ranked_probability_score

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.metrics import crps_gaussian, crps_samples, interval_coverage, rmse

FAILURE_RATE = 1e-6


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def crps_by_quadrature(law: stats.rv_continuous, target: float) -> float:
    low, high = law.mean() - 40 * law.std(), law.mean() + 40 * law.std()
    below = integrate.quad(lambda x: law.cdf(x) ** 2, low, target, epsabs=1e-13, epsrel=1e-13, limit=500)[0]
    above = integrate.quad(lambda x: law.sf(x) ** 2, target, high, epsabs=1e-13, epsrel=1e-13, limit=500)[0]
    return below + above


def crps_of_steps(draws: NDArray[np.float64], target: float) -> float:
    """``∫ (F − 1[x ≥ y])² dx`` for the empirical distribution: constant between its jumps and the target."""
    jumps = np.sort(np.append(draws, target))
    levels = [((draws <= left).mean() - (left >= target)) ** 2 for left in jumps[:-1]]
    return math.fsum(np.array(levels) * np.diff(jumps))


@pytest.mark.parametrize("shape", [(1,), (50,), (50, 3)])
def test_rmse_is_that_of_scikit_learn(shape: tuple[int, ...]) -> None:
    predictions, targets = normal(*shape), normal(*shape)
    expected = root_mean_squared_error(targets.flatten().numpy(), predictions.flatten().numpy())
    assert rmse(predictions, targets).item() == pytest.approx(expected, rel=1e-13)


def test_rmse_reads_transposed_memory() -> None:
    predictions, targets = normal(5, 3), normal(5, 3)
    assert rmse(predictions.mT, targets.mT).item() == pytest.approx(rmse(predictions, targets).item(), rel=1e-14)


def test_coverage_counts_targets_within_closed_intervals() -> None:
    lower, upper, targets = normal(200) - 1, normal(200) + 2, normal(200)
    lower, upper = torch.minimum(lower, upper), torch.maximum(lower, upper)
    targets[0], targets[1], lower[2], upper[3] = lower[0], upper[1], -math.inf, math.inf
    inside = [low <= y <= high for low, high, y in zip(lower.tolist(), upper.tolist(), targets.tolist(), strict=True)]
    assert interval_coverage(lower, upper, targets, reduction="none").tolist() == inside
    assert interval_coverage(lower, upper, targets).item() == pytest.approx(sum(inside) / 200, rel=1e-15)
    assert 0.2 < sum(inside) / 200 < 0.9


def test_a_crossed_interval_is_refused() -> None:
    for lower in (1.5, math.nan):
        with pytest.raises(InvalidArgument, match=r"upper − lower.*1 of 2"):
            interval_coverage(torch.tensor([lower, 0.0]), torch.ones(2), torch.zeros(2))


@pytest.mark.parametrize(("mean", "std", "target"), [(0, 1, 0), (0, 1, 2.5), (1, 0.2, 0.3), (-3, 5, 9), (0, 1, -7)])
def test_crps_of_a_gaussian_is_its_integral(mean: float, std: float, target: float) -> None:
    got = crps_gaussian(*(torch.tensor([value], dtype=torch.float64) for value in (mean, std, target)))
    assert got.item() == pytest.approx(crps_by_quadrature(stats.norm(mean, std), target), rel=1e-9)


def test_far_from_the_mean_the_score_is_the_distance() -> None:
    targets = torch.tensor([1e4, -1e4], dtype=torch.float64)
    got = crps_gaussian(torch.zeros(2), torch.full((2,), 3.0), targets, reduction="none")
    torch.testing.assert_close(got, targets.abs() - 3 / math.sqrt(math.pi), rtol=1e-14, atol=0)


@pytest.mark.parametrize("draws", [1, 2, 3, 40])
def test_the_plain_estimator_is_the_integral_of_the_steps(draws: int) -> None:
    samples, targets = normal(draws, 6), normal(6)
    samples[-1, 0] = samples[0, 0]  # a tie
    got = crps_samples(samples, targets, fair=False, reduction="none")
    columns = zip(samples.T.numpy(), targets.tolist(), strict=True)
    expected = torch.tensor([crps_of_steps(column, y) for column, y in columns], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    if draws > 1:  # torchmetrics asks for two
        torch.testing.assert_close(got.mean(), continuous_ranked_probability_score(samples.T, targets))


@pytest.mark.parametrize("draws", [2, 3, 12])
def test_the_fair_estimator_averages_over_pairs(draws: int) -> None:
    samples, targets = normal(draws, 4, 2), normal(4, 2)
    pairs = torch.stack([(samples[s] - samples[t]).abs() for s, t in combinations(range(draws), 2)]).mean(0)
    expected = (samples - targets).abs().mean(0) - pairs / 2
    torch.testing.assert_close(crps_samples(samples, targets, reduction="none"), expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(crps_samples(samples, targets), expected.mean(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("draws", [2, 5])
@pytest.mark.parametrize("fair", [True, False])
def test_only_the_fair_estimator_is_unbiased(draws: int, fair: bool) -> None:
    repeats, mean, std, target = 200_000, 0.5, 2.0, 1.7
    samples = mean + std * torch.randn(draws, repeats, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = crps_samples(samples, torch.full((repeats,), target), fair=fair, reduction="none")
    bias = 0.0 if fair else std / math.sqrt(math.pi) / draws  # E|X − X′| / 2S, and E|X − X′| = 2σ/√π
    target_score = crps_by_quadrature(stats.norm(mean, std), torch.tensor(target).item())
    z = (values.mean() - target_score - bias) / (values.std() / math.sqrt(repeats))
    assert abs(z.item()) < stats.norm.isf(FAILURE_RATE / 2)


def test_the_fair_estimator_needs_two_draws() -> None:
    with pytest.raises(InvalidArgument, match="two draws or more"):
        crps_samples(normal(1, 3), normal(3))


def test_a_scale_is_positive() -> None:
    with pytest.raises(InvalidArgument, match=r"must be positive.*1 of 2 not so, the first 0\.0"):
        crps_gaussian(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.zeros(2))


def test_nothing_is_broadcast() -> None:
    column, row = normal(4, 1), normal(4)
    for refused in (
        lambda: rmse(column, row),
        lambda: interval_coverage(column - 1, column + 1, row),
        lambda: interval_coverage(row - 1, torch.tensor(9.0), row),
        lambda: crps_gaussian(column, column.exp(), row),
        lambda: crps_gaussian(row, torch.tensor(1.0), row),
        lambda: crps_samples(normal(10, 4, 1), row),
        lambda: crps_samples(row, row),
    ):
        with pytest.raises(ShapeMismatch, match=r"do not fit the targets.*squeeze"):
            refused()
    with pytest.raises(ShapeMismatch, match="leading dimension of posterior draws"):
        crps_samples(torch.tensor(1.0), torch.tensor(1.0))
