"""Class probabilities beside their targets, checked and brought to one form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.metrics.checks import require_examples, require_values


@dataclass(frozen=True)
class ClassPredictions:
    """Probabilities in [0, 1] of two or more classes in float32 or float64, and the index of the true class."""

    probs: Float[Tensor, "*examples classes"]
    targets: Int64[Tensor, "*examples"]

    @property
    def of_target(self) -> Float[Tensor, "*examples"]:
        """``p[y]``."""
        return self.probs.gather(-1, self.targets.unsqueeze(-1)).squeeze(-1)

    @property
    def confidence(self) -> Float[Tensor, "*examples"]:
        """``max_c p[c]``."""
        return self.probs.amax(-1)

    @property
    def correct(self) -> Bool[Tensor, "*examples"]:
        """``argmax_c p[c] = y``; of tied classes the one of lowest index is predicted."""
        return self.probs.argmax(-1) == self.targets


def class_predictions(probs: Tensor, targets: Tensor) -> ClassPredictions:
    """Check both; one column ``p`` becomes the two classes ``(1 − p, p)``."""
    if not probs.is_floating_point():
        raise InvalidArgument(
            "probabilities must be floating point",
            got=probs.dtype,
            remedy="Give the probabilities, not the predicted classes.",
        )
    tolerance = max(1e-4, 4 * torch.finfo(probs.dtype).eps)
    # In half precision `1 − p` and the guard of the logarithm would be too coarse.
    probs, targets = _in_columns(probs.to(torch.promote_types(probs.dtype, torch.float32)), targets)
    _check_shapes(probs, targets)
    return ClassPredictions(_checked_probs(probs, tolerance), _checked_targets(targets, probs.shape[-1]))


def _in_columns(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if probs.ndim == 1 and targets.shape == probs.shape:
        return torch.stack([1 - probs, probs], -1), targets
    if probs.ndim > 0 and probs.shape[-1] == 1:
        return torch.cat([1 - probs, probs], -1), targets.squeeze(-1) if targets.shape == probs.shape else targets
    return probs, targets


def _check_shapes(probs: Tensor, targets: Tensor) -> None:
    # One-hot rows have the shape of the probabilities and must not pass for so many yes-or-no targets.
    if probs.ndim == 0 or targets.shape != probs.shape[:-1]:
        raise ShapeMismatch(
            "targets do not fit the probabilities",
            got=f"targets of shape {tuple(targets.shape)}, probabilities of shape {tuple(probs.shape)}",
            remedy="Probabilities are (examples, classes) and targets (examples,): average posterior draws first by "
            "probs.mean(0), turn one-hot rows into indices by targets.argmax(-1); one probability per example is "
            "(examples,) or (examples, 1).",
        )
    require_examples("probabilities", probs)


def _checked_probs(probs: Tensor, tolerance: float) -> Tensor:
    remedy = "Take logits.softmax(-1), or logits.sigmoid() for one column, and average that over posterior draws."
    inside = (probs >= -tolerance) & (probs <= 1 + tolerance)
    require_values("probabilities must lie between 0 and 1", probs, inside, remedy)
    total = probs.sum(-1)
    require_values("probabilities of an example must sum to 1", total, (total - 1).abs() <= tolerance, remedy)
    return probs.clamp(0, 1)


def _checked_targets(targets: Tensor, classes: int) -> Tensor:
    remedy = "Use targets.long() for class indices stored as floats."
    # Yes-or-no targets are stored as floats as often as not; among more classes a float is more likely a mistake.
    if targets.is_complex() or (targets.is_floating_point() and classes > 2):
        raise InvalidArgument("class indices must be integers", got=targets.dtype, remedy=remedy)
    indices = targets.long()
    known = (indices >= 0) & (indices < classes) & (indices.to(targets.dtype) == targets)
    require_values(f"targets must be class indices from 0 to {classes - 1}", targets, known, "Re-encode the targets.")
    return indices
