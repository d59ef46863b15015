"""Quantiles of a mixture of normals."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.predict.normal_mixture import NormalMixture

ENTRIES_TOGETHER = 2**20
"""Numbers in a temporary tensor: entries × components × levels."""
_BISECTIONS = 80  # at most: past the resolution of float64


def normal_mixture_quantile(mixture: NormalMixture, levels: Tensor) -> Tensor:
    """The y with ``Σ_c w_c Φ((y − m_c)/s_c) = level`` for every entry, by bisection, some entries at a time.

    Args:
        mixture: Of entries of any shape.
        levels: A scalar, or a vector, which becomes the leading dimension.
    """
    entries = mixture.means.shape[1:]
    together = max(1, ENTRIES_TOGETHER // (len(mixture.means) * max(1, levels.numel())))
    chunks = (each.flatten(1).split(together, dim=1) for each in (mixture.weights, mixture.means, mixture.stds))
    found = [_bisect(NormalMixture(*(each.unsqueeze(1) for each in chunk)), levels.reshape(-1, 1))
             for chunk in zip(*chunks, strict=True)]  # fmt: skip
    return torch.cat(found, dim=1).reshape(*levels.shape, *entries)


def _bisect(mixture: NormalMixture, levels: Float[Tensor, "levels 1"]) -> Float[Tensor, "levels entries"]:
    """Between the extreme ones of the components' own quantiles; the mixture's parts are (components, 1, entries)."""
    own = mixture.means + mixture.stds * torch.special.ndtri(levels)
    low, high = own.amin(0), own.amax(0)
    smallest_std = mixture.stds.amin(0)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        below = mixture.cdf(middle) < levels
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        resolution = torch.finfo(middle.dtype).eps * torch.maximum(smallest_std, middle.abs())
        if bool((high - low <= resolution).all()):
            break
    return 0.5 * (low + high)
