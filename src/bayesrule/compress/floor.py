"""The smallest standard deviation that a truncation may leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bayesrule.compress.weights import Weight
from bayesrule.posteriors import ClippedLowRankCovariance

MARGIN = 0.99
"""For rounding, down to half precision, so that an entry at the floor is not counted as touched."""
SMALLEST = torch.finfo(torch.float64).tiny


def truncated(weight: Weight, rank: int, floor: float = SMALLEST) -> ClippedLowRankCovariance:
    """The best rank-k approximation of a weight's standard deviations, in double precision."""
    return ClippedLowRankCovariance.truncate(weight.std, rank, floor)


def safe_floor(weights: Sequence[Weight], rank: int) -> float:
    """The smallest standard deviation there is: a floor that moves no entry away from the value it stands for.

    A truncated entry below the floor ``f ≤ min S`` is raised towards its own ``S_ij ≥ f``, so clipping never adds to
    the error, ``‖max(T, f) − S‖ ≤ ‖T − S‖``, and ``min S`` is the largest number of which that can be promised. At
    rank 1 all entries are positive (Perron–Frobenius) and there is nothing to mend: the floor then lies below them.

    Args:
        weights: Those of one layer, which share their floor.
        rank: That they are truncated to.

    Returns:
        That number, less one per cent, to three digits.
    """
    found = min(float(weight.std.min()) for weight in weights)
    if rank == 1:
        lowest = min(float(truncated(weight, 1).unclipped.min()) for weight in weights)
        # Where one part of a matrix is far larger than another, entries vanish in rounding.
        visible = max(torch.finfo(weight.dtype).eps * float(weight.std.max()) for weight in weights)
        found = min(found, max(lowest, visible))
    return float(f"{MARGIN * found:.2e}")
