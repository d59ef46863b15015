"""Clipped low-rank standard deviations: what is left of a mean-field posterior after compression."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.posteriors.independent import IndependentCovariance


@dataclass(frozen=True)
class ClippedLowRankCovariance(IndependentCovariance):
    """``Σ = diag(S²)``, ``S = max(L Rᵀ, floor)`` with factors of any sign.

    A truncated singular value decomposition of positive standard deviations can have entries at or below zero (never
    at rank 1, by Perron–Frobenius), where the KL would be infinite: a positive ``floor`` keeps it finite, and
    `clipped` counts the entries it touches.
    """

    fan_in_factor: Float[Tensor, "*batch fan_in k"]
    fan_out_factor: Float[Tensor, "*batch fan_out k"]
    floor: float

    def __post_init__(self) -> None:
        if not self.floor > 0:
            raise InvalidArgument("The floor of the standard deviations must be positive", got=self.floor)

    @classmethod
    def truncate(cls, std: Float[Tensor, "*batch fan_in fan_out"], rank: int, floor: float) -> ClippedLowRankCovariance:
        """The best rank-k approximation of ``std``, split evenly between the factors."""
        if not 1 <= rank <= min(std.shape[-2:]):
            raise InvalidArgument(
                f"A {std.shape[-2]} × {std.shape[-1]} matrix can be truncated to ranks 1 to {min(std.shape[-2:])}",
                got=f"rank {rank}",
            )
        left, singular, right = torch.linalg.svd(std, full_matrices=False)
        root = singular[..., None, :rank].sqrt()
        return cls(left[..., :rank] * root, right.mT[..., :rank] * root, floor)

    @property
    def shape(self) -> torch.Size:
        """(…, fan-in, fan-out)."""
        return torch.Size((*self.fan_in_factor.shape[:-1], self.fan_out_factor.shape[-2]))

    @property
    def std(self) -> Tensor:  # type: ignore[override]
        """``max(L Rᵀ, floor)``."""
        return (self.fan_in_factor @ self.fan_out_factor.mT).clamp_min(self.floor)

    def select_rows(self, index: Tensor) -> ClippedLowRankCovariance:
        """Those rows of the fan-in factor."""
        return ClippedLowRankCovariance(self.fan_in_factor[..., index, :], self.fan_out_factor, self.floor)

    @property
    def clipped(self) -> Tensor:
        """How many entries the floor touches."""
        return (self.fan_in_factor @ self.fan_out_factor.mT < self.floor).sum((-2, -1))
