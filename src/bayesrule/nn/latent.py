"""The law of a code that an encoder predicts: a Gaussian with a diagonal, matrix normal or full covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.linalg import log_diagonal_cholesky
from bayesrule.posteriors import DiagonalCovariance, GaussianPosterior, MatrixNormalCovariance


@dataclass(frozen=True)
class Latent:
    """The law of a code ``z``, read as a rows × columns matrix, given the encoder's outputs.

    A full covariance is the matrix normal of |z| × 1.

    Attributes:
        kind: ``"diag"`` for independent entries, ``"mn"`` for a matrix normal.
        rows: Of the matrix.
        columns: Of the matrix.
    """

    kind: Literal["diag", "mn"]
    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.kind not in ("diag", "mn") or min(self.rows, self.columns) < 1:
            raise InvalidArgument(
                'A code is "diag" or "mn", of at least one row and one column',
                got=f"{self.kind}, {self.rows} × {self.columns}",
            )

    @property
    def size(self) -> int:
        """|z|."""
        return self.rows * self.columns

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many of the encoder's outputs each tensor takes, the mean first."""
        spread = (self.size,) if self.kind == "diag" else (self.rows**2, self.columns**2)
        return (self.size, *spread)

    def posterior(self, outputs: Float[Tensor, "*batch numbers"]) -> GaussianPosterior:
        """``q(z | x)``; standard deviations and diagonals of Cholesky factors are given as logarithms."""
        if outputs.shape[-1] != sum(self.sizes):
            raise ShapeMismatch(
                "The encoder gives the wrong number of outputs", got=outputs.shape[-1],
                remedy=f"Give it {sum(self.sizes)}: sum(latent.sizes).",
            )  # fmt: skip
        mean, *spread = outputs.split(self.sizes, dim=-1)
        mean = mean.unflatten(-1, (self.rows, self.columns))
        if self.kind == "diag":
            return GaussianPosterior(mean, DiagonalCovariance(spread[0].exp().view_as(mean)))
        factors = (
            log_diagonal_cholesky(raw.unflatten(-1, (size, size)))
            for raw, size in zip(spread, (self.rows, self.columns), strict=True)
        )
        return GaussianPosterior(mean, MatrixNormalCovariance(*factors))
