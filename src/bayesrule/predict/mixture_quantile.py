"""Quantiles of an equally weighted mixture of normals."""

from __future__ import annotations

import torch
from torch import Tensor


def normal_mixture_quantile(means: Tensor, variances: Tensor, levels: Tensor) -> Tensor:
    """The y with ``(1/S) Σ_s Φ((y − mean_s)/std_s) = level``, by bisection between the components' own quantiles.

    Args:
        means: (draws, …).
        variances: Likewise.
        levels: A scalar, or a vector, which becomes the leading dimension.
    """
    stds = variances.sqrt()
    shaped = levels.reshape(*levels.shape, *(1,) * (means.ndim - 1))
    own = means + stds * torch.special.ndtri(shaped.unsqueeze(levels.ndim))
    low, high = own.amin(levels.ndim), own.amax(levels.ndim)
    for _ in range(80):  # halves the bracket each time: past the resolution of float64
        middle = 0.5 * (low + high)
        below = torch.special.ndtr((middle.unsqueeze(levels.ndim) - means) / stds).mean(levels.ndim) < shaped
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)
