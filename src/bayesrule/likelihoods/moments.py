"""First and second moments of a target."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Moments(NamedTuple):
    """Mean and variance of a target given the outputs."""

    mean: Tensor
    variance: Tensor


class PredictiveMoments(NamedTuple):
    """Mean of a target over posterior draws, and its variance in two parts."""

    mean: Tensor
    epistemic_variance: Tensor
    aleatoric_variance: Tensor

    @property
    def total_variance(self) -> Tensor:
        """Epistemic plus aleatoric."""
        return self.epistemic_variance + self.aleatoric_variance
