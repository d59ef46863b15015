"""Scales and weights found on held-out rows, against closed forms and a general optimiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

from bayesrule.train.calibration import (
    COMMON_SCALE,
    GRID,
    OWN_SCALE,
    SMALLEST_SQUARE,
    calibrate,
    mixture_weights,
)

STEP = float(GRID[1] - GRID[0])


def normals(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


class Held:
    """Held-out rows of kinds of Gaussian members: their means, common standard deviation 1, and the targets."""

    def __init__(self, means: np.ndarray, targets: np.ndarray) -> None:
        self.means, self.targets = means, targets

    def __call__(self, log_scale: float) -> Tensor:
        return torch.from_numpy(stats.norm.logpdf(self.targets, self.means, math.exp(log_scale)))


@pytest.mark.parametrize("scale", [0.2, 0.5, 1.0, 1.7, 2.9])
@pytest.mark.parametrize("rows", [12, 3000])
def test_one_kinds_scale_is_that_of_its_errors(scale: float, rows: int) -> None:
    errors = scale * normals(0, 1, rows)
    found = calibrate(Held(np.zeros((1, rows)), errors), kinds=1, folds=5)

    def loss(total: float, own: float) -> float:  # own and common scale; the density knows only their sum
        prior = 0.5 * (own / OWN_SCALE) ** 2 + 0.5 * ((total - own) / COMMON_SCALE) ** 2
        return -stats.norm.logpdf(errors, 0, math.exp(total)).sum() + prior

    # The own scale first, alone; then the common one, with the own one as it was found: each to the nearest grid point.
    own = optimize.minimize_scalar(lambda value: loss(value, value), bounds=(-3, 2), method="bounded").x
    total = optimize.minimize_scalar(lambda value: loss(value, own), bounds=(-3, 2), method="bounded").x
    assert found.log_scales.tolist() == pytest.approx([total], abs=1.01 * STEP)
    assert found.weights.tolist() == [1.0]
    if rows > 1000:
        assert math.exp(found.log_scales[0]) == pytest.approx(errors.std(), rel=1.5 * STEP)


def test_each_kind_gets_its_own_scale() -> None:
    truth = normals(1, 4000)
    means = truth - np.array([[0.3], [1.5]]) * normals(2, 2, 4000)
    found = calibrate(Held(means, truth), kinds=2, folds=1)
    ratio = float(found.log_scales[1] - found.log_scales[0])
    assert ratio == pytest.approx(math.log(5), abs=1.01 * STEP)
    assert found.weights[0] > 0.9


def best_weights(log_densities: np.ndarray, pseudo_count: float) -> np.ndarray:
    """By a general optimiser on the simplex, through a softmax whose last logit is 0."""

    def loss(logits: np.ndarray) -> float:
        log_weights = np.append(logits, 0.0) - np.logaddexp.reduce(np.append(logits, 0.0))
        score = np.logaddexp.reduce(log_weights[:, None] + log_densities, axis=0).sum()
        return -score - pseudo_count * log_weights.sum()

    found = optimize.minimize(loss, np.zeros(len(log_densities) - 1), method="BFGS", options={"gtol": 1e-9})
    logits = np.append(found.x, 0.0)
    return np.exp(logits - np.logaddexp.reduce(logits))


@pytest.mark.parametrize("kinds", [2, 3, 5])
@pytest.mark.parametrize("pseudo_count", [0.5, 1.0])
def test_weights_are_the_most_probable_ones(kinds: int, pseudo_count: float) -> None:
    centres = np.linspace(-1, 1, kinds)[:, None]
    densities = stats.norm.logpdf(normals(kinds, 60) + 0.4, centres, 1.0)
    found = mixture_weights(torch.from_numpy(densities), pseudo_count, iterations=5_000)
    np.testing.assert_allclose(found, best_weights(densities, pseudo_count), atol=1e-6)


def test_weights_sum_to_one_and_favour_who_is_right() -> None:
    densities = torch.tensor([[-1.0], [-1e4], [-3.0]], dtype=torch.float64).expand(3, 50)
    weights = mixture_weights(densities)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-9)
    assert weights.argmax() == 0
    assert float(weights[1]) == pytest.approx(1 / 53, rel=1e-3)  # only its pseudo-count is left


def carried_over(log_common: float, effective: float, folds: int) -> float:
    """``v(M) = s² − V + 2V/M`` at s² = 1: V from ``v(R) = k² v(1)``, then ``½ log v(FR)/v(1)``."""
    square = math.exp(2 * log_common)
    spread = optimize.brentq(lambda v: (1 - v + 2 * v / effective) / (1 + v) - square, 0, 1e6)
    return 0.5 * math.log((1 - spread + 2 * spread / (folds * effective)) / (1 + spread))


@pytest.mark.parametrize("folds", [1, 3, 5])
def test_a_larger_ensemble_gets_narrower_members(folds: int) -> None:
    rows, spread, noise = 4000, 0.35, 0.8
    truth = normals(3, rows)
    means = truth + spread * normals(4, 2, rows)
    targets = truth + noise * normals(5, rows)
    held = Held(means, targets)
    alone, together = calibrate(held, kinds=2, folds=1), calibrate(held, kinds=2, folds=folds)
    torch.testing.assert_close(alone.weights, together.weights)
    own = [_best_own(held, kind) for kind in range(2)]
    effective = float(1 / alone.weights.square().sum())
    log_common = float(alone.log_scales[0]) - own[0]
    assert log_common < 0
    expected = carried_over(log_common, effective, folds)
    np.testing.assert_allclose(together.log_scales, np.array(own) + expected, atol=1e-9)
    wanted = math.sqrt(noise**2 - spread**2 + 2 * spread**2 / (2 * folds))
    assert math.exp(float(together.log_scales.mean())) == pytest.approx(wanted, rel=0.08)


def _best_own(held: Held, kind: int) -> float:
    scores = [float(held(float(value))[kind].sum() - 0.5 * (value / OWN_SCALE) ** 2) for value in GRID]
    return float(GRID[int(np.argmax(scores))])


def test_the_correction_for_size_has_a_floor() -> None:
    """Members far apart about a target without noise: the formula alone would ask for less than no variance."""
    truth = np.zeros(2000)
    means = np.stack([normals(6, 2000), -normals(6, 2000)])
    few, many = (calibrate(Held(means, truth), kinds=2, folds=folds) for folds in (1, 50))
    own = _best_own(Held(means, truth), 0)
    assert float(many.log_scales[0]) >= max(0.5 * math.log(SMALLEST_SQUARE) + own, float(GRID[0])) - 1e-12
    assert float(many.log_scales[0]) <= float(few.log_scales[0])
