"""The marginal of some rows of a larger event."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.posteriors.covariance import CovarianceOperator

DENSE_LIMIT = 4096
"""Entries up to which `solve` and `logdet` form the dense matrix."""


@dataclass(frozen=True)
class RestrictedCovariance(CovarianceOperator):
    """``P Σ Pᵀ`` where P keeps ``length`` rows (entries of a vector) from ``start`` on."""

    whole: CovarianceOperator
    start: int
    length: int

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """That of the whole."""
        return self.whole.event_dim

    @property
    def independent(self) -> bool:  # type: ignore[override]
        """That of the whole."""
        return self.whole.independent

    @property
    def shape(self) -> torch.Size:
        """The whole's, with fewer rows."""
        shape = list(self.whole.shape)
        shape[-self.event_dim] = self.length
        return torch.Size(shape)

    @property
    def noise_shape(self) -> torch.Size:
        """The whole's: its draw is made, then cut."""
        return self.whole.noise_shape

    def _keep(self, x: Tensor) -> Tensor:
        return x.narrow(-self.event_dim, self.start, self.length)

    def matmul(self, x: Tensor) -> Tensor:
        """``P Σ Pᵀ x``."""
        padded = x.new_zeros(*x.shape[: x.ndim - self.event_dim], *self.whole.event_shape)
        return self._keep(self.whole.matmul(torch.slice_scatter(
            padded, x, dim=padded.ndim - self.event_dim, start=self.start, end=self.start + self.length
        )))  # fmt: skip

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``P R ε``."""
        return self._keep(self.whole.sqrt_matmul(noise))

    def diagonal(self) -> Tensor:
        """The kept variances."""
        return self._keep(self.whole.diagonal())

    def select_rows(self, index: Tensor) -> CovarianceOperator:
        """Those rows of the whole."""
        return self.whole.select_rows(index + self.start)

    def solve(self, x: Tensor) -> Tensor:
        """By the dense Cholesky factor, up to `DENSE_LIMIT` entries."""
        flat = x.flatten(-self.event_dim).unsqueeze(-1)
        return torch.cholesky_solve(flat, self._cholesky("solve")).squeeze(-1).reshape(x.shape)

    def logdet(self) -> Tensor:
        """By the dense Cholesky factor, up to `DENSE_LIMIT` entries."""
        return 2 * self._cholesky("logdet").diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def _cholesky(self, operation: str) -> Tensor:
        size = self.event_shape.numel()
        if size > DENSE_LIMIT:
            raise Unsupported(
                f"The {operation} of a marginal of {type(self.whole).__name__} needs a dense {size} × {size} matrix",
                remedy="Use the whole group's posterior, or only the marginal's mean, variance and draws.",
            )
        return torch.linalg.cholesky(self.dense())
