"""Convolutions in one, two or three dimensions, and their transposes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.contractions.contraction import (
    Contraction,
    column_blocks,
    example_signs,
    need_channels,
    refuse_batched_weight,
)
from bayesrule.linalg import MatrixView

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
TransposedConvolution = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d

BLOCK_WIDTH, MOST_BLOCKS = 45, 4
"""Of `widen_triangular`: narrower or more blocks cost more in calls than they save in products."""

_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True)
class Conv(Contraction):
    """`nn.ConvNd` without its bias: every stride, padding (and its mode), dilation and grouping."""

    view: MatrixView
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    padding_mode: str = "zeros"
    edge_padding: tuple[int, ...] = ()

    @classmethod
    def of(cls, module: Convolution) -> Conv:
        """The contraction of a module."""
        return cls(
            MatrixView(tuple(module.weight.shape)), module.stride, module.padding, module.dilation, module.groups,
            module.padding_mode, tuple(module._reversed_padding_repeated_twice),
        )  # fmt: skip

    @property
    def channel_dim(self) -> int:
        """Channels come before the positions."""
        return -1 - self._dims

    @property
    def _dims(self) -> int:
        return len(self.view.shape) - 2

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``x * W``."""
        self._need_channels(x)
        return self._convolve(x, matrix, self.view)

    def square(self, x: Tensor) -> Tensor:
        """``x²``."""
        return x.square()

    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``x * M``, M repeated for each group."""
        self._need_channels(x)
        view = MatrixView((matrix.shape[-1] * self.groups, *self.view.shape[1:]))
        return self._convolve(x, matrix.tile(self.groups), view)

    def widen_triangular(self, x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        """``x * A`` without most of A's zeros: each block of its columns is a convolution of the later channels.

        On a CPU; a GPU has the zeros multiplied in the time that more and smaller convolutions take.
        """
        if self.groups > 1 or x.device.type != "cpu":
            return super().widen_triangular(x, factor)
        self._need_channels(x)
        # with many channels out and few in, convolutions are faster in this layout
        x = x.movedim(self.channel_dim, -1).contiguous().movedim(-1, self.channel_dim)
        channels, per_channel = self.view.shape[1], self.view.rows_per_channel
        blocks = min(MOST_BLOCKS, channels, max(1, self.view.fan_in // BLOCK_WIDTH))
        pieces = []
        for start, block in column_blocks(factor, blocks, per_channel):
            left = channels - start // per_channel
            view = MatrixView((block.shape[-1], left, *self.view.shape[2:]))
            pieces.append(self._convolve(x.narrow(self.channel_dim, channels - left, left), block, view))
        return tuple(pieces)

    def rows(self, x: Tensor) -> int:
        """Examples × output positions."""
        self._need_channels(x)
        sizes, kernel = x.shape[-self._dims :], self.view.shape[2:]
        if self.padding == "same":
            positions = list(sizes)
        else:
            padding = self.padding if isinstance(self.padding, tuple) else (0,) * self._dims
            positions = [
                (size + 2 * pad - dilation * (k - 1) - 1) // stride + 1
                for size, pad, dilation, k, stride in zip(
                    sizes, padding, self.dilation, kernel, self.stride, strict=True
                )
            ]
        return math.prod(x.shape[: self.channel_dim]) * math.prod(positions)

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """One for each example and input channel."""
        return example_signs(x, self.channel_dim, self._dims + 1)

    def _need_channels(self, x: Tensor) -> None:
        need_channels(x, self.channel_dim, self.view.shape[1] * self.groups, "Conv")

    def _convolve(self, x: Tensor, matrix: Tensor, view: MatrixView) -> Tensor:
        refuse_batched_weight(matrix, "Conv")
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = F.pad(x, self.edge_padding, mode=self.padding_mode), (0,) * self._dims
        convolve = _CONVOLVE[self._dims]
        return convolve(x, view.weight(matrix), None, self.stride, padding, self.dilation, self.groups)


@dataclass(frozen=True)
class ConvTranspose(Contraction):
    """`nn.ConvTransposeNd` without its bias. Each output sums over input channels and kernel positions."""

    view: MatrixView
    stride: tuple[int, ...]
    padding: Any  # torch annotates it with the strings only plain convolutions take
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, module: TransposedConvolution) -> ConvTranspose:
        """The contraction of a module."""
        return cls(
            MatrixView(tuple(module.weight.shape), fan_out_axis=1, groups=module.groups),
            module.stride, module.padding, module.output_padding, module.dilation,
        )  # fmt: skip

    @property
    def groups(self) -> int:  # type: ignore[override]
        """They lie on the input axis of the weight."""
        return self.view.groups

    @property
    def channel_dim(self) -> int:
        """Channels come before the positions."""
        return 1 - len(self.view.shape)

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``x *ᵀ W``."""
        return self._convolve(x, matrix, self.view)

    def square(self, x: Tensor) -> Tensor:
        """``x²``."""
        return x.square()

    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``x *ᵀ M``, M repeated for each group."""
        shape = (self.view.shape[0], matrix.shape[-1], *self.view.shape[2:])
        return self._convolve(x, matrix.tile(self.groups), MatrixView(shape, 1, self.groups))

    def rows(self, x: Tensor) -> int:
        """Examples × output positions."""
        self._need_channels(x)
        positions = [
            (size - 1) * stride - 2 * pad + dilation * (k - 1) + extra + 1
            for size, stride, pad, dilation, k, extra in zip(
                x.shape[2 - len(self.view.shape) :], self.stride, self.padding, self.dilation, self.view.shape[2:],
                self.output_padding, strict=True,
            )
        ]  # fmt: skip
        return math.prod(x.shape[: self.channel_dim]) * math.prod(positions)

    def sign_shape(self, x: Tensor) -> tuple[int, ...]:
        """One for each example and input channel."""
        return example_signs(x, self.channel_dim, -self.channel_dim)

    def _need_channels(self, x: Tensor) -> None:
        need_channels(x, self.channel_dim, self.view.shape[0], "ConvTranspose")

    def _convolve(self, x: Tensor, matrix: Tensor, view: MatrixView) -> Tensor:
        self._need_channels(x)
        refuse_batched_weight(matrix, "ConvTranspose")
        transpose = _TRANSPOSE[len(self.view.shape) - 2]
        return transpose(
            x, view.weight(matrix), None, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )
