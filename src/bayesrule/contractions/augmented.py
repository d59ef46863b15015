"""A bias as one further row of the weight."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.contractions.contraction import Contraction
from bayesrule.linalg import MatrixView


@dataclass(frozen=True)
class Augmented(Contraction):
    """``op([x, 1], [W; b]) = op(x, W) + b``: the input gains a constant one, its square is itself."""

    inner: Contraction

    @property
    def view(self) -> MatrixView:  # type: ignore[override]
        """The weight's rows and one more, as a plain matrix."""
        return MatrixView((self.inner.view.fan_in + 1, self.inner.view.fan_out), fan_out_axis=1)

    @property
    def groups(self) -> int:  # type: ignore[override]
        """As inside."""
        return self.inner.groups

    @property
    def channel_dim(self) -> int:
        """As inside."""
        return self.inner.channel_dim

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``op(x, W) + b``."""
        return self._add_row(self.inner(x, matrix[..., :-1, :]), matrix[..., -1, :])

    def square(self, x: Tensor) -> Tensor:
        """As inside."""
        return self.inner.square(x)

    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``op(x, M) + last row``, in every group."""
        row = matrix[..., -1, :]
        return self._add_row(self.inner.widen(x, matrix[..., :-1, :]), row.tile(self.groups))

    def rows(self, x: Tensor) -> int:
        """As inside."""
        return self.inner.rows(x)

    def sign_shape(self, x: Tensor) -> None:
        """The constant input cannot change its sign; the output's signs decorrelate the examples."""

    def _add_row(self, output: Tensor, row: Tensor) -> Tensor:
        # Leading dimensions of a row (many weights at once) come before the output's examples and positions.
        # In the output's precision, as every bias: of a float32 one the output would be float32, under autocast too.
        row = row.to(output.dtype)
        spread = row.reshape(*row.shape[:-1], *(1,) * (output.ndim - row.ndim), row.shape[-1])
        return output + spread.movedim(-1, self.channel_dim)
