"""How far off predictions of numbers are, and how often an interval holds the target."""

from __future__ import annotations

from jaxtyping import Float64
from torch import Tensor

from bayesrule.metrics.checks import Reduction, finite_values, reduced, require_same_shape, require_values


def rmse(predictions: Tensor, targets: Tensor) -> Float64[Tensor, ""]:
    """``√(mean (ŷ − y)²)`` over all examples and outputs.

    Args:
        predictions: The predictive mean.
        targets: Of the same shape.

    Example:
        >>> import torch
        >>> rmse(torch.tensor([3.0, 1.0, 2.0, 4.0]), torch.tensor([1.0, 1.0, 2.0, 4.0])).item()
        1.0
    """
    from torchmetrics.functional.regression import mean_squared_error  # here, as importing it takes as long as torch

    require_same_shape("predictions", predictions, targets)
    predictions, targets = finite_values("predictions", predictions), finite_values("targets", targets)
    return mean_squared_error(predictions.flatten(), targets.flatten(), squared=False)


def interval_coverage(
    lower: Tensor, upper: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Float64[Tensor, "*examples"]:
    """``1[lower ≤ y ≤ upper]``: a calibrated 90 % interval has mean 0.9.

    Args:
        lower: The lower ends, of the targets' shape; ``-inf`` for an interval open below.
        upper: The upper ends, likewise.
        targets: The numbers that came.
        reduction: "mean" over all examples and outputs, or "none" for ones and zeros.

    Example:
        >>> import torch
        >>> lower, upper = torch.zeros(4), torch.ones(4)
        >>> interval_coverage(lower, upper, torch.tensor([-0.1, 0.0, 0.5, 1.0])).item()
        0.75
    """
    require_same_shape("lower ends", lower, targets)
    require_same_shape("upper ends", upper, targets)
    targets = finite_values("targets", targets)
    width = upper.double() - lower.double()
    remedy = "Give the lower ends first, and look for NaN."
    require_values("widths (upper − lower) must not be negative", width, lower <= upper, remedy)
    return reduced((lower <= targets) & (targets <= upper), reduction)
