"""Full covariance: every pair of entries may be correlated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.linalg import log_diagonal_cholesky, scaled_identity_log_cholesky, triangular_logdet
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.family import Family, check_positive
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.parts import Part


@dataclass(frozen=True)
class FullCovariance(CovarianceOperator):
    """``Σ = LLᵀ`` over the event's entries in row-major order."""

    cholesky: Float[Tensor, "*batch d d"]
    events: tuple[int, ...]

    def __post_init__(self) -> None:
        if math.prod(self.events) != self.cholesky.shape[-1]:
            raise ShapeMismatch(
                f"A factor over {self.cholesky.shape[-1]} entries does not fit the event", got=self.events
            )

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """Dimensions of the event."""
        return len(self.events)

    @property
    def shape(self) -> torch.Size:
        """Batch and event."""
        return torch.Size((*self.cholesky.shape[:-2], *self.events))

    def matmul(self, x: Tensor) -> Tensor:
        """``L Lᵀ x``."""
        return self._unflatten(self.cholesky @ (self.cholesky.mT @ self._flatten(x)), x)

    def solve(self, x: Tensor) -> Tensor:
        """``(LLᵀ)⁻¹ x``."""
        return self._unflatten(torch.cholesky_solve(self._flatten(x), self.cholesky), x)

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``L ε``."""
        return self._unflatten(self.cholesky @ self._flatten(noise), noise)

    def logdet(self) -> Tensor:
        """``2 Σ log L_ii``."""
        return 2 * triangular_logdet(self.cholesky)

    def diagonal(self) -> Tensor:
        """``Σ_k L²_ik``."""
        return self.cholesky.square().sum(-1).reshape(self.shape)

    def _flatten(self, x: Tensor) -> Tensor:
        return x.flatten(-self.event_dim).unsqueeze(-1)

    def _unflatten(self, columns: Tensor, like: Tensor) -> Tensor:
        return columns.squeeze(-1).reshape(*columns.shape[:-2], *self.events)


@dataclass(frozen=True)
class Full(Family):
    """Full-covariance Normal, for small groups: d(d+1)/2 numbers for d entries.

    Attributes:
        init_std: Where the standard deviations start, without correlation.
        max_entries: The largest event it takes; a dense factor of twice that many entries has four times the memory.
    """

    init_std: float = 0.01
    max_entries: int = 20_000

    def __post_init__(self) -> None:
        check_positive("init_std", self.init_std)

    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Independent entries of standard deviation ``init_std``."""
        if mean.numel() > self.max_entries:
            raise InvalidArgument(
                f"A full covariance over {mean.numel()} entries needs a dense matrix of that size",
                got=f"a mean of shape {tuple(mean.shape)}",
                remedy=f"Use KTied or MatrixNormal, or raise max_entries (now {self.max_entries}).",
            )
        return {"mean": mean, "log_cholesky": scaled_identity_log_cholesky(mean.numel(), self.init_std, mean)}

    def build(
        self, parameters: Mapping[str, Tensor], *, event_dim: int, parts: tuple[Part, ...] = ()
    ) -> GaussianPosterior:
        """``N(mean, LLᵀ)``."""
        mean = parameters["mean"]
        event = tuple(mean.shape[mean.ndim - event_dim :])
        covariance = FullCovariance(log_diagonal_cholesky(parameters["log_cholesky"]), event)
        return GaussianPosterior(mean, covariance, parts)
