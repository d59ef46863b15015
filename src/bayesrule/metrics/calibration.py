"""Reliability of the confidence in the predicted class, bin by bin, and its summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.metrics.class_predictions import class_predictions

Binning = Literal["width", "mass"]


@dataclass(frozen=True)
class ReliabilityBins:
    """Examples grouped by the confidence of their prediction; bin b holds ``edges[b] < confidence ≤ edges[b + 1]``.

    ``confidence`` and ``accuracy`` are means over the examples in each bin, NaN in an empty one. The first bin also
    holds a confidence equal to its lower edge.
    """

    count: Int64[Tensor, " bins"]
    confidence: Float64[Tensor, " bins"]
    accuracy: Float64[Tensor, " bins"]
    edges: Float64[Tensor, " bins+1"]

    @property
    def gap(self) -> Float64[Tensor, " bins"]:
        """``accuracy − confidence``: negative where the predictions are overconfident, NaN in an empty bin."""
        return self.accuracy - self.confidence


def reliability_bins(probs: Tensor, targets: Tensor, bins: int = 15, binning: Binning = "width") -> ReliabilityBins:
    """Mean confidence ``max_c p[c]`` and accuracy of the examples in each of ``bins`` bins: a reliability diagram.

    Args:
        probs: (examples, classes), or one column for two classes.
        targets: (examples,) class indices.
        bins: How many.
        binning: "width": the bins ``((b − 1)/B, b/B]`` of [0, 1] [Guo et al. 2017], so a confidence of exactly 1 is in
            the last. "mass": edges at quantiles of the confidences, so that bins hold equally many examples up to one;
            equal confidences always share a bin, whatever the order of the examples, which can leave others empty.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25], [1.0, 0.0]])
        >>> table = reliability_bins(probs, torch.tensor([0, 1, 0]), bins=4)
        >>> table.count.tolist(), table.confidence[2:].tolist(), table.accuracy[2:].tolist()
        ([0, 0, 2, 1], [0.75, 1.0], [0.5, 1.0])
    """
    if bins < 1:
        raise InvalidArgument("there must be one bin or more", got=bins, remedy="15 is the usual number.")
    predictions = class_predictions(probs, targets)
    confidence = predictions.confidence.flatten()
    inner_edges = _inner_edges(confidence, bins, binning)
    index = torch.bucketize(confidence, inner_edges)
    count = torch.bincount(index, minlength=bins)

    def bin_mean(values: Tensor) -> Tensor:
        return inner_edges.new_zeros(bins, dtype=torch.float64).index_add(0, index, values.double()) / count

    edges = torch.cat([inner_edges.new_zeros(1), inner_edges, inner_edges.new_ones(1)]).double()
    return ReliabilityBins(count, bin_mean(confidence), bin_mean(predictions.correct.flatten()), edges)


def _inner_edges(confidence: Float[Tensor, " examples"], bins: int, binning: Binning) -> Float[Tensor, " inner"]:
    """The edges between bins, in the dtype of the confidences, which can lie exactly on one."""
    step = torch.arange(1, bins, device=confidence.device)
    if binning == "width":
        return (step.double() / bins).to(confidence.dtype)
    if binning == "mass":
        last_of_bin = (step * len(confidence) - 1) // bins  # ⌈b·n/B⌉ − 1
        return confidence.sort().values[last_of_bin]
    raise InvalidArgument("no such binning", got=repr(binning), remedy='Use "width" or "mass".')


def expected_calibration_error(
    probs: Tensor, targets: Tensor, bins: int = 15, binning: Binning = "width"
) -> Float64[Tensor, ""]:
    """``Σ_b (n_b / n) |accuracy_b − confidence_b|`` over the bins of `reliability_bins` [Guo et al. 2017].

    Confidence is that of the predicted class, ``max(p, 1 − p)`` for one column. This is not torchmetrics' number, which
    counts a confidence of exactly 1 in one more bin of its own, adds up in float32, takes probabilities that rounding
    left above 1 for logits, and for one column compares ``p`` itself with the targets. Where none of that matters the
    two agree.

    Args:
        probs: (examples, classes), or one column for two classes.
        targets: (examples,) class indices.
        bins: How many.
        binning: "width" for bins of equal width on [0, 1], "mass" for bins of equally many examples.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.75, 0.25], [0.75, 0.25], [1.0, 0.0], [1.0, 0.0]])
        >>> expected_calibration_error(probs, torch.tensor([0, 1, 0, 0])).item()
        0.125
    """
    table = reliability_bins(probs, targets, bins=bins, binning=binning)
    filled = table.count > 0
    return (table.count * table.gap.abs())[filled].sum() / table.count.sum()
