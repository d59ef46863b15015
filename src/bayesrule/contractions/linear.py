"""Linear: ``y = x W``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from bayesrule.contractions.contraction import Contraction, column_blocks, example_signs, need_channels
from bayesrule.linalg import MatrixView

BLOCK_WIDTH, MOST_BLOCKS = 128, 6
"""Of `widen_triangular`: narrower or more blocks cost more in calls than they save in products."""


@dataclass(frozen=True)
class Linear(Contraction):
    """`nn.Linear` without its bias."""

    is_product: ClassVar[bool] = True
    view: MatrixView

    @classmethod
    def of(cls, module: nn.Linear) -> Linear:
        """The contraction of a module."""
        return cls(MatrixView(tuple(module.weight.shape)))

    @property
    def channel_dim(self) -> int:
        """Channels are last."""
        return -1

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``x W``."""
        return self.widen(x, matrix)

    def square(self, x: Tensor) -> Tensor:
        """``x²``."""
        return x.square()

    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``x M``."""
        need_channels(x, -1, self.view.fan_in, "Linear")
        return x @ matrix

    def widen_triangular(self, x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        """``x A`` without most of A's zeros."""
        need_channels(x, -1, self.view.fan_in, "Linear")
        blocks = min(MOST_BLOCKS, max(1, self.view.fan_in // BLOCK_WIDTH))
        return tuple(x[..., start:] @ block for start, block in column_blocks(factor, blocks))

    def rows(self, x: Tensor) -> int:
        """All dimensions but the last."""
        return x.numel() // self.view.fan_in

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """One for each example and input feature."""
        return example_signs(x, -1, 1)
