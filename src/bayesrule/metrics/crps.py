"""Continuous ranked probability score, ``∫ (F(x) − 1[x ≥ y])² dx = E|X − y| − ½ E|X − X′|``, in the units of y."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.metrics.checks import (
    Reduction,
    finite_values,
    reduced,
    require_draws,
    require_same_shape,
    require_values,
)


def crps_samples(
    samples: Tensor, targets: Tensor, *, fair: bool = True, reduction: Reduction = "mean"
) -> Float64[Tensor, "*examples"]:
    """``(1/S) Σ_s |x_s − y| − Σ_{s<t} |x_s − x_t| / D`` from S draws of the target's predictive distribution.

    Fair, ``D = S(S − 1)``: unbiased for the score of the distribution the draws come from, so comparable between
    numbers of draws and with `crps_gaussian`; single values can be negative. Otherwise ``D = S²``: the score of the
    draws taken as the whole prediction, on average ``E|X − X′| / 2S`` larger; one draw gives the absolute error.

    The pairs are summed by sorting: O(S log S) time and no S × S array.

    Args:
        samples: (draws, examples…), draws of y itself, with its noise.
        targets: (examples…); several outputs are scored one by one.
        fair: Which of the two estimators.
        reduction: "mean" over all examples and outputs, or "none".

    Example:
        >>> import torch
        >>> draws, target = torch.tensor([[0.0], [4.0]]), torch.tensor([1.0])
        >>> crps_samples(draws, target).item(), crps_samples(draws, target, fair=False).item()
        (0.0, 1.0)
    """
    require_draws("samples", samples)
    samples, targets = finite_values("samples", samples), finite_values("targets", targets)
    require_same_shape("samples of one draw", samples[0], targets)
    draws, error = len(samples), samples - targets
    if fair and draws < 2:
        raise InvalidArgument(
            "the fair estimator needs two draws or more",
            got=draws,
            remedy="Draw more, or use fair=False, which for one draw is the absolute error.",
        )
    # |x_s − x_t| = |e_s − e_t|, and in increasing order e_s is added 2s − S − 1 times (s from 1).
    weight = torch.arange(1 - draws, draws, 2, dtype=error.dtype, device=error.device)
    pairs = torch.tensordot(weight, error.sort(0).values, 1)
    return reduced(error.abs().mean(0) - pairs / (draws * (draws - 1 if fair else draws)), reduction)


def crps_gaussian(
    mean: Tensor, std: Tensor, targets: Tensor, *, reduction: Reduction = "mean"
) -> Float64[Tensor, "*examples"]:
    """``σ [z(2Φ(z) − 1) + 2φ(z) − 1/√π]`` with ``z = (y − μ)/σ``, the score of N(μ, σ²).

    Args:
        mean: μ, of the targets' shape.
        std: σ > 0, of the targets' shape.
        targets: The numbers that came.
        reduction: "mean" over all examples and outputs, or "none".

    Example:
        >>> import torch
        >>> round(crps_gaussian(torch.zeros(1), torch.ones(1), torch.zeros(1)).item(), 6)
        0.233695
    """
    require_same_shape("means", mean, targets)
    require_same_shape("standard deviations", std, targets)
    mean, std = finite_values("means", mean), finite_values("standard deviations", std)
    require_values("standard deviations must be positive", std, std > 0, "Without spread the score is |y − μ|.")
    z = (finite_values("targets", targets) - mean) / std
    twice_density = (-z.square() / 2).exp() * math.sqrt(2 / math.pi)
    return reduced(std * (z * torch.erf(z / math.sqrt(2)) + twice_density - 1 / math.sqrt(math.pi)), reduction)
