"""Reliability bins and calibration error against scikit-learn, torchmetrics and a loop over the bins."""

from __future__ import annotations

import math

import jaxtyping
import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from bayesrule.errors import InvalidArgument
from bayesrule.metrics import ReliabilityBins, expected_calibration_error, reliability_bins
from bayesrule.metrics.calibration import Binning

BINNINGS: list[Binning] = ["width", "mass"]
STRATEGY = {"width": "uniform", "mass": "quantile"}  # scikit-learn's names


def predictions(examples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Overconfident ones: the targets follow the tempered probabilities."""
    logits = 2 * torch.randn(examples, classes, dtype=torch.float64)
    return logits.softmax(-1), torch.multinomial((logits / 2).softmax(-1), 1).squeeze(-1)


def confident(*confidences: float, classes: int = 16, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows whose class 0 has the given probability, the others the rest in equal shares."""
    top = torch.tensor(confidences, dtype=dtype).unsqueeze(-1)
    return torch.cat([top, ((1 - top) / (classes - 1)).expand(-1, classes - 1)], -1)


def error_by_loop(probs: Tensor, targets: Tensor, bins: int) -> float:
    """Guo et al. 2017: for each bin (lower, upper], the weighted gap of accuracy and confidence."""
    confidence, predicted = probs.numpy().max(-1), probs.numpy().argmax(-1)
    total = 0.0
    for b in range(bins):
        inside = (confidence > b / bins) & (confidence <= (b + 1) / bins)
        if inside.any():
            gap = (predicted == targets.numpy())[inside].mean() - confidence[inside].mean()
            total += inside.sum() / len(probs) * abs(gap)
    return total


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 100])
@pytest.mark.parametrize("classes", [2, 10])
def test_equal_width_is_the_loop_and_torchmetrics(bins: int, classes: int) -> None:
    probs, targets = predictions(300, classes)
    got = expected_calibration_error(probs, targets, bins=bins).item()
    assert got == pytest.approx(error_by_loop(probs, targets, bins), rel=1e-12)
    theirs = multiclass_calibration_error(probs, targets, num_classes=classes, n_bins=bins)
    assert got == pytest.approx(theirs.item(), abs=1e-6)  # theirs is float32
    assert got > 1e-3  # or the comparison says little


@pytest.mark.parametrize("binning", BINNINGS)
def test_the_bins_are_those_of_scikit_learn(binning: Binning) -> None:
    probs, targets = predictions(300, 10)  # 300 = 15 · 20: both notions of a quantile give bins of 20
    table = reliability_bins(probs, targets, binning=binning)
    correct, confidence = (probs.argmax(-1) == targets).numpy(), probs.amax(-1).numpy()
    accuracy, mean_confidence = calibration_curve(correct, confidence, n_bins=15, strategy=STRATEGY[binning])
    filled = table.count > 0
    torch.testing.assert_close(table.accuracy[filled], torch.from_numpy(accuracy), rtol=1e-13, atol=0)
    torch.testing.assert_close(table.confidence[filled], torch.from_numpy(mean_confidence), rtol=1e-13, atol=0)
    assert table.count.sum() == 300
    assert table.accuracy[~filled].isnan().all()
    torch.testing.assert_close(table.gap, table.accuracy - table.confidence, equal_nan=True)


@pytest.mark.parametrize(("examples", "bins"), [(300, 15), (301, 15), (314, 15), (7, 3), (3, 7)])
def test_equal_mass_fills_bins_evenly_in_order_of_confidence(examples: int, bins: int) -> None:
    probs, targets = predictions(examples, 4)
    table = reliability_bins(probs, targets, bins=bins, binning="mass")
    assert table.count.max() - table.count.min() <= 1
    order = probs.amax(-1).argsort()
    groups = order.split(table.count.tolist())
    correct = (probs.argmax(-1) == targets).double()
    means = [math.fsum(correct[group].tolist()) / len(group) if len(group) else math.nan for group in groups]
    torch.testing.assert_close(
        table.accuracy, torch.tensor(means, dtype=torch.float64), rtol=1e-14, atol=0, equal_nan=True
    )
    gaps = [abs((probs.amax(-1)[group] - correct[group]).mean().item()) * len(group) for group in groups if len(group)]
    error = expected_calibration_error(probs, targets, bins=bins, binning="mass")
    assert error.item() == pytest.approx(math.fsum(gaps) / examples, rel=1e-12)


def test_equal_confidences_share_a_bin_whatever_their_order() -> None:
    probs, targets = predictions(90, 3)
    probs[::2] = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    shuffle = torch.randperm(90)
    tables = [reliability_bins(probs[i], targets[i], bins=6, binning="mass") for i in (slice(None), shuffle)]
    assert tables[0].count.tolist() == tables[1].count.tolist() == [15, 15, 15, 45, 0, 0]
    torch.testing.assert_close(tables[0].accuracy, tables[1].accuracy, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(dtype: torch.dtype) -> None:
    probs = confident(*[b / 15 for b in range(1, 16)], dtype=dtype)
    table = reliability_bins(probs, torch.zeros(15, dtype=torch.int64))
    assert table.count.tolist() == [1] * 15
    torch.testing.assert_close(table.confidence, torch.arange(1, 16).double() / 15, rtol=1e-7, atol=0)
    torch.testing.assert_close(table.edges, torch.arange(16).double() / 15, rtol=1e-7, atol=0)


@pytest.mark.parametrize("binning", BINNINGS)
def test_certainty_is_in_the_last_bin_not_in_one_of_its_own(binning: Binning) -> None:
    targets = torch.tensor([1, 0])
    # Apart, the two gaps would be 1 and 0.05; together they are |½ − 0.975|.
    error = expected_calibration_error(
        confident(1.0, 0.95), targets, bins=1 if binning == "mass" else 15, binning=binning
    )
    assert error.item() == pytest.approx(0.475, rel=1e-14)


@pytest.mark.parametrize("binning", BINNINGS)
def test_one_example(binning: Binning) -> None:
    for target, error in ((0, 0.25), (1, 0.75)):
        got = expected_calibration_error(confident(0.75), torch.tensor([target]), binning=binning)
        assert got.item() == pytest.approx(error, rel=1e-15)


@pytest.mark.parametrize("binning", BINNINGS)
def test_one_column_is_judged_by_its_predicted_class(binning: Binning) -> None:
    p, targets = torch.rand(60, dtype=torch.float64), torch.randint(2, (60,))
    p[:3] = torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64)
    expected = expected_calibration_error(torch.stack([1 - p, p], -1), targets, binning=binning)
    for column in (p, p.unsqueeze(-1)):
        torch.testing.assert_close(expected_calibration_error(column, targets, binning=binning), expected)
    assert expected_calibration_error(p.round(), p.round(), binning=binning).item() == 0


def test_many_float32_examples_add_up_without_drift() -> None:
    examples = 2**18
    probs = confident(0.99, classes=2, dtype=torch.float32).expand(examples, 2)
    targets = (torch.arange(examples) % 64 == 0).long()
    expected = abs(probs[0, 0].double() - 63 / 64)
    torch.testing.assert_close(expected_calibration_error(probs, targets), expected, rtol=1e-9, atol=0)


def test_probabilities_that_rounding_left_above_one_are_not_taken_for_logits() -> None:
    probs = torch.tensor([[1 + 1e-6, 0.0], [0.6, 0.4]])
    assert expected_calibration_error(probs, torch.tensor([0, 0])).item() == pytest.approx(0.2, rel=1e-6)


def test_sequences_and_transposed_memory_count_like_rows() -> None:
    probs, targets = predictions(24, 5)
    expected = expected_calibration_error(probs, targets)
    folded = probs.T.contiguous().T.reshape(4, 6, 5).transpose(0, 1), targets.reshape(4, 6).T
    torch.testing.assert_close(expected_calibration_error(*folded), expected, rtol=1e-14, atol=0)


def test_errors_name_the_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, targets = predictions(4, 3)
    with pytest.raises(InvalidArgument, match="one bin or more"):
        reliability_bins(probs, targets, bins=0)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would speak first
    with pytest.raises(InvalidArgument, match=r"no such binning.*'area'.*width.*mass"):
        expected_calibration_error(probs, targets, binning="area")  # type: ignore[arg-type]


def test_the_table_is_a_frozen_value() -> None:
    table = reliability_bins(*predictions(4, 3))
    assert isinstance(table, ReliabilityBins)
    with pytest.raises(AttributeError):
        table.count = torch.zeros(15)  # type: ignore[misc]
    assert np.asarray(table.edges).shape == (16,)
