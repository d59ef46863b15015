"""A mean with its standard error."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float64
from torch import Tensor

from bayesrule.metrics.checks import require_examples


class MeanAndSem(NamedTuple):
    """A mean and the standard error of that mean."""

    mean: Float64[Tensor, ""]
    sem: Float64[Tensor, ""]


def mean_and_sem(values: Tensor) -> MeanAndSem:
    """``v̄ = Σv/n`` and ``√(Σ(v − v̄)² / (n − 1)) / √n``, over examples (or runs, or splits) taken as independent.

    The standard error over examples speaks of the choice of test examples, not of the spread between training runs.
    From a single value it is unknown: NaN.

    Args:
        values: One number per example, of any shape: a metric with ``reduction="none"``.

    Example:
        >>> import torch
        >>> mean, sem = mean_and_sem(torch.tensor([1.0, 3.0]))
        >>> mean.item(), sem.item()
        (2.0, 1.0)
    """
    require_examples("values", values)
    values = values.double().flatten()
    mean = values.mean()
    squares = (values - mean).square().sum()
    return MeanAndSem(mean, (squares / (len(values) * (len(values) - 1))).sqrt())
