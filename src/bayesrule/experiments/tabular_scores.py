"""How a prediction of test rows is scored, in the target's own units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from bayesrule import metrics
from bayesrule.experiments.tabular_data import Split
from bayesrule.predict import Predictive

BINS = 15
"""Of the confidences, for the calibration error."""


def scores(predictive: Predictive, split: Split) -> dict[str, float]:
    """The scores of the split's kind of target."""
    return class_scores(predictive, split) if split.y_train.dtype.kind == "i" else number_scores(predictive, split)


def number_scores(predictive: Predictive, split: Split) -> dict[str, float]:
    """``log_likelihood`` and ``rmse`` in the target's own units; ``coverage_90``: within 5 to 95 %."""
    y = torch.from_numpy(split.y_test).to(predictive.outputs.dtype).unsqueeze(-1)
    inside = (predictive.cdf(y) - 0.5).abs() <= 0.45
    return {
        "log_likelihood": float(predictive.log_prob(y).double().mean()) - math.log(split.scale),
        "rmse": split.scale * float(metrics.rmse(predictive.mean, y)),
        "coverage_90": float(inside.double().mean()),
    }


def class_scores(predictive: Predictive, split: Split) -> dict[str, float]:
    """``nll``, ``accuracy`` and ``ece``; for `pooled_ece` also what each bin of confidences adds up to."""
    y = torch.from_numpy(split.y_test)
    probs = predictive.probs.double()
    table = metrics.reliability_bins(probs, y, bins=BINS)
    surplus = torch.where(table.count > 0, table.count * table.gap, 0.0)
    return {
        "nll": -float(predictive.log_prob(y).double().mean()),
        "accuracy": float(metrics.accuracy(probs, y)),
        "ece": float(metrics.expected_calibration_error(probs, y, bins=BINS)),
        "rows": float(len(y)),
        **{f"surplus_{number}": float(value) for number, value in enumerate(surplus)},
    }


def pooled_ece(cells: Sequence[Mapping[str, float]]) -> float:
    """The calibration error of the test rows of all splits together.

    A few dozen rows leave every bin a gap by chance, and its absolute value does not average out; pooled, it does.
    """
    rows = sum(cell["rows"] for cell in cells)
    return sum(abs(sum(cell[f"surplus_{number}"] for cell in cells)) for number in range(BINS)) / rows
