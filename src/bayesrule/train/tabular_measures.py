"""Predictions of a table's target, and how good they are, in the target's own units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule import metrics
from bayesrule.data import ClassTarget, NumberTarget
from bayesrule.predict import Predictive

LEVELS = {"q05": 0.05, "q50": 0.5, "q95": 0.95}
SAMPLES = 200
"""At least so many predictive samples of each row go into its CRPS."""


def prediction_columns(target: ClassTarget | NumberTarget, predictive: Predictive) -> Mapping[str, Any]:
    """The columns of a table of predictions, one entry for each row."""
    if isinstance(target, ClassTarget):
        return _class_columns(target, predictive)
    return _number_columns(target, predictive)


def _class_columns(target: ClassTarget, predictive: Predictive) -> Mapping[str, Any]:
    probs = predictive.probs.double()
    return {
        "prediction": target.decode(probs.argmax(-1).numpy()),
        **{f"prob_{name}": probs[:, place].numpy() for place, name in enumerate(target.classes)},
        "entropy": predictive.entropy.double().numpy(),
        "mutual_information": predictive.mutual_information.double().numpy(),
    }


def _number_columns(target: NumberTarget, predictive: Predictive) -> Mapping[str, Any]:
    quantiles = predictive.quantile(torch.tensor(list(LEVELS.values()))).squeeze(-1)
    return {
        "mean": target.decode(predictive.mean.squeeze(-1).numpy()),
        "std": target.std * predictive.std.squeeze(-1).double().numpy(),
        "epistemic_std": target.std * predictive.epistemic_std.squeeze(-1).double().numpy(),
        **{name: target.decode(row.numpy()) for name, row in zip(LEVELS, quantiles, strict=True)},
    }


@dataclass(frozen=True)
class Piece:
    """What the measures need of some rows, one entry for each of them.

    Attributes:
        log_prob: Log-density of the target, in its own units.
        expected: The target: a class, or a number in its own units.
        predicted: Class probabilities, or the mean.
        cdf: A number's predictive probability of values up to it; none for classes.
        crps: A number's score; none for classes.
    """

    log_prob: Tensor
    expected: Tensor
    predicted: Tensor
    cdf: Tensor
    crps: Tensor

    @classmethod
    def of(cls, target: ClassTarget | NumberTarget, predictive: Predictive, targets: Tensor) -> Piece:
        """From predictions and targets as the model knows them."""
        none = torch.zeros(0, dtype=torch.float64)
        if isinstance(target, ClassTarget):
            return cls(predictive.log_prob(targets).double(), targets, predictive.probs, none, none)
        column = targets.unsqueeze(-1)
        crps = metrics.crps_samples(_samples(predictive), column, reduction="none").squeeze(-1)
        return cls(
            predictive.log_prob(column).double() - math.log(target.std),
            target.std * targets.double() + target.mean,
            target.std * predictive.mean.squeeze(-1).double() + target.mean,
            predictive.cdf(column).squeeze(-1).double(),
            target.std * crps,
        )


def measures(target: ClassTarget | NumberTarget, pieces: Sequence[Piece]) -> dict[str, float]:
    """Flat, by the names of ``metrics.json``."""
    log_prob, expected, predicted, cdf, crps = (
        torch.cat([getattr(piece, name) for piece in pieces]) for name in Piece.__dataclass_fields__
    )
    found = {"test_nll": -log_prob.mean()}
    if isinstance(target, ClassTarget):
        found["test_accuracy"] = metrics.accuracy(predicted, expected)
        found["test_ece"] = metrics.expected_calibration_error(predicted, expected)
    else:
        inside = (LEVELS["q05"] <= cdf) & (cdf <= LEVELS["q95"])
        found["test_rmse"] = metrics.rmse(predicted, expected)
        found["test_coverage_90"] = inside.double().mean()
        found["test_crps"] = crps.mean()
    return {name: float(value) for name, value in found.items()}


def _samples(predictive: Predictive) -> Tensor:
    """Targets drawn from the predictive distribution, several from each draw of the weights where those are few."""
    outputs = predictive.outputs
    repeated = outputs.repeat(math.ceil(SAMPLES / len(outputs)), *(1,) * (outputs.ndim - 1))
    return Predictive(repeated, predictive.likelihood, predictive.seed).samples()
