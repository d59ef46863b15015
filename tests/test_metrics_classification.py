"""Scores of class probabilities against scikit-learn, scipy, torchmetrics and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import special, stats
from sklearn import metrics as sklearn_metrics
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy

from bayesrule.metrics import accuracy, brier_score, brier_score_tfp, categorical_nll, mixture_nll

Array = NDArray[np.float64]
SCORES = [categorical_nll, accuracy, brier_score, brier_score_tfp]


def predictions(examples: int, classes: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    probs = (2 * torch.randn(examples, classes, dtype=dtype)).softmax(-1)
    return probs, torch.randint(classes, (examples,))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def brier_by_loop(probs: Array, targets: NDArray[np.int64]) -> tuple[Array, Array]:
    """Both conventions, each by its own formula."""
    usual, tfp = [], []
    for p, y in zip(probs.tolist(), targets.tolist(), strict=True):
        usual.append(math.fsum((value - (c == y)) ** 2 for c, value in enumerate(p)))
        tfp.append(math.fsum(value**2 for value in p) - 2 * p[y])
    return np.array(usual), np.array(tfp)


@pytest.mark.parametrize(("examples", "classes"), [(1, 2), (1, 7), (200, 2), (200, 10)])
def test_nll_is_the_log_loss_of_scikit_learn(examples: int, classes: int) -> None:
    probs, targets = predictions(examples, classes)
    expected = sklearn_metrics.log_loss(targets.numpy(), probs.numpy(), labels=list(range(classes)))
    torch.testing.assert_close(categorical_nll(probs, targets).item(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 87.33654475), (torch.float64, 708.39641853)])
def test_nll_of_an_impossible_target_is_large_but_finite(dtype: torch.dtype, most: float) -> None:
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype)
    values = categorical_nll(probs, torch.tensor([1, 0]), reduction="none")
    torch.testing.assert_close(values, double(most, 0.0), rtol=1e-9, atol=0)


def test_the_guard_of_the_logarithm_changes_no_small_probability() -> None:
    small = 1e-30
    values = categorical_nll(torch.tensor([[1.0, small]], dtype=torch.float32), torch.tensor([1]))
    assert values.item() == pytest.approx(-math.log(small), rel=1e-8)


def test_mixture_nll_is_that_of_a_gaussian_mixture() -> None:
    means, targets = torch.randn(50, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    log_probs = torch.from_numpy(stats.norm.logpdf(targets.numpy(), means.numpy(), 0.3))
    expected = -np.log(stats.norm.pdf(targets.numpy(), means.numpy(), 0.3).mean(0))
    torch.testing.assert_close(
        mixture_nll(log_probs, reduction="none"), torch.from_numpy(expected), rtol=1e-12, atol=1e-12
    )
    assert mixture_nll(log_probs).item() == pytest.approx(expected.mean(), rel=1e-12)


def test_mixture_nll_survives_densities_that_underflow() -> None:
    log_probs = double(-1000.0, -1001.0, -math.inf).unsqueeze(-1)
    expected = -special.logsumexp([-1000.0, -1001.0]) + math.log(3)
    assert mixture_nll(log_probs).item() == pytest.approx(expected, rel=1e-14)
    assert mixture_nll(double(-math.inf, -math.inf).unsqueeze(-1)).item() == math.inf


def test_mixture_nll_of_draws_is_the_nll_of_averaged_probabilities() -> None:
    log_probs = torch.randn(20, 30, 5, dtype=torch.float64).log_softmax(-1)
    targets = torch.randint(5, (30,))
    of_targets = log_probs.gather(-1, targets.expand(20, 30).unsqueeze(-1)).squeeze(-1)
    averaged = categorical_nll(log_probs.exp().mean(0), targets, reduction="none")
    torch.testing.assert_close(mixture_nll(of_targets, reduction="none"), averaged, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("examples", "classes"), [(1, 2), (200, 2), (200, 10)])
def test_accuracy_is_that_of_scikit_learn_and_torchmetrics(examples: int, classes: int) -> None:
    probs, targets = predictions(examples, classes)
    got = accuracy(probs, targets).item()
    assert got == pytest.approx(sklearn_metrics.accuracy_score(targets.numpy(), probs.numpy().argmax(-1)), abs=1e-15)
    theirs = multiclass_accuracy(probs, targets, num_classes=classes, average="micro")
    assert got == pytest.approx(theirs.item(), abs=1e-7)  # theirs is float32


def test_of_tied_classes_the_first_is_predicted() -> None:
    probs = torch.tensor([[0.2, 0.4, 0.4], [0.2, 0.4, 0.4]])
    assert accuracy(probs, torch.tensor([1, 2]), reduction="none").tolist() == [1.0, 0.0]
    assert accuracy(torch.tensor([0.5, 0.5]), torch.tensor([0, 1]), reduction="none").tolist() == [1.0, 0.0]


@pytest.mark.parametrize(("examples", "classes"), [(1, 2), (200, 2), (200, 10)])
def test_both_brier_scores_are_their_formulas(examples: int, classes: int) -> None:
    probs, targets = predictions(examples, classes)
    usual, tfp = map(torch.from_numpy, brier_by_loop(probs.numpy(), targets.numpy()))
    torch.testing.assert_close(brier_score(probs, targets, reduction="none"), usual, rtol=0, atol=1e-14)
    torch.testing.assert_close(brier_score_tfp(probs, targets, reduction="none"), tfp, rtol=0, atol=1e-14)
    torch.testing.assert_close(brier_score(probs, targets), usual.mean(), rtol=0, atol=1e-14)
    torch.testing.assert_close(brier_score_tfp(probs, targets), tfp.mean(), rtol=0, atol=1e-14)


def test_the_range_of_both_brier_scores() -> None:
    certain, targets = torch.eye(3, dtype=torch.float64)[[0, 0]], torch.tensor([0, 2])
    assert brier_score(certain, targets, reduction="none").tolist() == [0.0, 2.0]
    assert brier_score_tfp(certain, targets, reduction="none").tolist() == [-1.0, 1.0]


def test_the_brier_score_of_a_good_float32_prediction_keeps_its_digits() -> None:
    p = torch.tensor([1 - 2**-20, 2**-20], dtype=torch.float32)
    exact = sum((Fraction(value) - y) ** 2 for value, y in zip(p.tolist(), (1, 0), strict=True))
    assert brier_score(p.unsqueeze(0), torch.tensor([0])).item() == pytest.approx(float(exact), rel=1e-6)


def test_the_binary_brier_score_is_twice_that_of_scikit_learn() -> None:
    probs, targets = torch.rand(100, dtype=torch.float64), torch.randint(2, (100,))
    expected = 2 * sklearn_metrics.brier_score_loss(targets.numpy(), probs.numpy())
    assert brier_score(probs, targets).item() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("score", SCORES)
def test_one_column_means_two_classes(score: Callable[..., Tensor]) -> None:
    p, targets = torch.rand(40, dtype=torch.float64), torch.randint(2, (40,))
    p[:2] = double(0.0, 1.0)
    expected = score(torch.stack([1 - p, p], -1), targets, reduction="none")
    assert expected.shape == (40,)
    for column, bits in [(p, targets), (p, targets.bool()), (p.unsqueeze(-1), targets), (p[:, None], targets[:, None])]:
        torch.testing.assert_close(score(column, bits, reduction="none"), expected, rtol=0, atol=0)
    torch.testing.assert_close(score(p, targets.double()), expected.mean(), rtol=1e-15, atol=0)


@pytest.mark.parametrize("score", SCORES)
def test_the_mean_is_that_of_the_values_in_the_shape_of_the_targets(score: Callable[..., Tensor]) -> None:
    probs, targets = predictions(24, 5)
    flat = score(probs, targets, reduction="none")
    tokens = score(probs.reshape(4, 6, 5), targets.reshape(4, 6), reduction="none")
    torch.testing.assert_close(tokens, flat.reshape(4, 6), rtol=0, atol=0)
    assert score(probs, targets).item() == pytest.approx(math.fsum(flat.tolist()) / 24, rel=1e-14)
