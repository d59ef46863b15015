"""A layer as a contraction of its input with a weight, linear in the weight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.errors import ShapeMismatch, Unsupported
from bayesrule.linalg import MatrixView


class Contraction(ABC):
    """``y = op(x, W)`` with ``W`` given as its fan-in × fan-out matrix.

    Every estimator and every family's local noise are written on this interface alone, once for all kinds of layers.
    """

    view: MatrixView
    groups: int = 1
    is_product: ClassVar[bool] = False
    """Whether ``op(x, W)`` is ``x W``."""
    picks_rows: ClassVar[bool] = False
    """Whether inputs are indices of rows of the weight."""

    @property
    @abstractmethod
    def channel_dim(self) -> int:
        """Where the fan-out channels lie in the output, counted from the end."""

    @abstractmethod
    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``op(x, W)``."""

    @abstractmethod
    def square(self, x: Tensor) -> Tensor:
        """The input whose contraction with ``W²`` sums squared products: ``x²``; an index stays itself."""

    @abstractmethod
    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Apply a fan-in × r matrix in the weight's place: r channels (for each group)."""

    def widen_triangular(self, x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        """`widen` by a lower-triangular fan-in × fan-in matrix, the channels in pieces where zeros can be left out."""
        return (self.widen(x, factor),)

    @abstractmethod
    def rows(self, x: Tensor) -> int:
        """How many output rows (examples × positions) this input gives."""

    @abstractmethod
    def sign_shape(self, x: Tensor) -> tuple[int, ...] | None:
        """Shape of one random sign per example and input channel, or None where an input cannot change its sign."""

    def used_rows(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """For inputs that only pick rows of the weight: which rows, and which of these each input picks."""
        return None

    def settle(self, x: Tensor, output: Tensor, mean: Tensor) -> Tensor:
        """Outputs that are not to be random, put back to their value at the mean: none, for most layers."""
        return output

    def mix(self, channels: Tensor, matrix: Tensor) -> Tensor:
        """``y_j = Σ_r channels_{g(j) r} matrix_jr``: from r channels per group to the fan-out ones."""
        rank = matrix.shape[-1]
        by_example = self.groups == 1 and self.channel_dim < -1 and channels.ndim > -self.channel_dim
        if by_example and matrix.ndim == 2 and channels.device.type == "cpu":
            # a product for each example: moving the channels last would copy them, and back
            positions = channels.flatten(self.channel_dim + 1).flatten(0, -3)
            mixed = torch.bmm(matrix.expand(len(positions), *matrix.shape), positions)
            shape = *channels.shape[: self.channel_dim], len(matrix), *channels.shape[self.channel_dim + 1 :]
            return mixed.reshape(shape)
        last = channels.movedim(self.channel_dim, -1)
        if self.groups == 1:
            mixed = last @ matrix.mT
        else:
            # einsum, since a broadcast matmul would copy the matrix for every output row
            grouped = last.unflatten(-1, (self.groups, rank)), matrix.unflatten(-2, (self.groups, -1))
            mixed = torch.einsum("...gr,gor->...go", *grouped).flatten(-2)
        return mixed.movedim(-1, self.channel_dim)


def column_blocks(factor: Tensor, blocks: int, unit: int = 1) -> list[tuple[int, Tensor]]:
    """A lower-triangular matrix as blocks of columns without the zero rows above: its first row, and the block.

    Of the m² products of a vector with the matrix, ``(1 + 1/blocks)/2`` are left. Blocks begin at multiples of `unit`.
    """
    size = factor.shape[-1]
    starts = [size // unit * block // blocks * unit for block in range(blocks)]
    widths = [stop - start for start, stop in zip(starts, (*starts[1:], size), strict=True)]
    columns = factor.split(widths, dim=-1)
    return [(start, block[..., start:, :]) for start, block in zip(starts, columns, strict=True)]


def example_signs(x: Tensor, channel_dim: int, event_dim: int) -> tuple[int, ...]:
    """One sign for each example (dimension 0, where there is a batch) and channel, shared over all positions."""
    shape = [1] * x.ndim
    shape[channel_dim] = x.shape[channel_dim]
    if x.ndim > event_dim:
        shape[0] = x.shape[0]
    return tuple(shape)


def need_channels(x: Tensor, channel_dim: int, channels: int, layer: str) -> None:
    """Refuse an input whose channels do not fit the weight."""
    if x.ndim < -channel_dim or x.shape[channel_dim] != channels:
        raise ShapeMismatch(
            f"{layer} takes {channels} channels in dimension {channel_dim}",
            got=f"an input of shape {tuple(x.shape)}",
        )


def refuse_batched_weight(matrix: Tensor, layer: str) -> None:
    """Convolutions and embeddings take one weight at a time; many go through `torch.vmap`."""
    if matrix.ndim != 2:
        raise Unsupported(
            f"{layer} takes one fan-in × fan-out matrix", got=f"shape {tuple(matrix.shape)}",
            remedy="Map over many weights with torch.func.vmap.",
        )  # fmt: skip
