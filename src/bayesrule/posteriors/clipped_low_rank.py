"""Clipped low-rank standard deviations: what is left of a mean-field posterior after compression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.posteriors.family import Family, check_positive
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.independent import IndependentCovariance
from bayesrule.posteriors.ktied import KTied
from bayesrule.posteriors.parts import Part


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
    def unclipped(self) -> Tensor:
        """``L Rᵀ``, of any sign."""
        return self.fan_in_factor @ self.fan_out_factor.mT

    @property
    def std(self) -> Tensor:  # type: ignore[override]
        """``max(L Rᵀ, floor)``."""
        return self.unclipped.clamp_min(self.floor)

    def select_rows(self, index: Tensor) -> ClippedLowRankCovariance:
        """Those rows of the fan-in factor."""
        return ClippedLowRankCovariance(self.fan_in_factor[..., index, :], self.fan_out_factor, self.floor)

    @property
    def clipped(self) -> Tensor:
        """How many entries the floor touches."""
        return (self.unclipped < self.floor).sum((-2, -1))


@dataclass(frozen=True)
class ClippedLowRank(Family):
    """Normal whose standard deviations are ``max(L Rᵀ, floor)``; the factors are free, of either sign.

    The family of a compressed model. To train low-rank standard deviations from scratch, use `KTied`, whose positive
    factors need no floor.

    Attributes:
        rank: k.
        floor: The smallest standard deviation an entry can have.
        init_std: Mean of the standard deviations at the start.
        init_spread: Standard deviation of the factors' logarithms at the start, where all are positive.
    """

    rank: int = 2
    floor: float = 1e-6
    init_std: float = 0.01
    init_spread: float = 0.1

    def __post_init__(self) -> None:
        check_positive("floor", self.floor)
        self._positive_start()  # refuses the rest

    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """The factors that k-tied starts from."""
        start = self._positive_start().init(mean, generator=generator)
        factors = {key.replace("_log_", "_"): value.exp() for key, value in start.items() if key != "mean"}
        return {"mean": mean, **factors}

    def build(
        self, parameters: Mapping[str, Tensor], *, event_dim: int = 2, parts: tuple[Part, ...] = ()
    ) -> GaussianPosterior:
        """``N(mean, diag(max(L Rᵀ, floor)²))``."""
        factors = parameters["fan_in_factor"], parameters["fan_out_factor"]
        return GaussianPosterior(parameters["mean"], ClippedLowRankCovariance(*factors, self.floor), parts)

    def _positive_start(self) -> KTied:
        return KTied(self.rank, self.init_std, self.init_spread)
