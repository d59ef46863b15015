"""Every weight as one fan-in × fan-out matrix, whatever its layout."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from bayesrule.errors import ShapeMismatch


@dataclass(frozen=True)
class MatrixView:
    """How a weight of a given ``shape`` is read as a fan-in × fan-out matrix.

    Columns are the ``fan_out_axis`` of the weight; rows are all its other axes, in order. So `nn.Linear` (out, in)
    and `nn.ConvNd` (out, in, …) have axis 0; `nn.ConvTransposeNd` (in, out, …) and `nn.Embedding` (index, feature)
    have axis 1. ``groups`` > 1 splits axis 0 of a *transposed* convolution, whose groups lie on the input axis.

    The view of a contiguous Linear or ConvNd weight, and the way back, copy nothing.
    """

    shape: tuple[int, ...]
    fan_out_axis: int = 0
    groups: int = 1

    def __post_init__(self) -> None:
        if len(self.shape) < 2:
            raise ShapeMismatch(
                "A matrix view needs a weight of two or more dimensions", got=self.shape,
                remedy="One-dimensional tensors such as biases take the diagonal or the point family.",
            )  # fmt: skip
        if self.groups > 1 and (self.fan_out_axis == 0 or self.shape[0] % self.groups):
            raise ShapeMismatch(
                f"The {self.groups} groups of a matrix view must divide axis 0, and the fan-out be another axis",
                got=f"shape {self.shape}, fan-out axis {self.fan_out_axis}",
            )

    @property
    def fan_out(self) -> int:
        """Columns: how many outputs the weight produces."""
        return self.shape[self.fan_out_axis] * self.groups

    @property
    def fan_in(self) -> int:
        """Rows: how many numbers each output sums over."""
        return math.prod(self.shape) // self.fan_out

    @property
    def is_transposed_matrix(self) -> bool:
        """Whether the weight is the matrix transposed, as of `nn.Linear`."""
        return len(self.shape) == 2 and self.fan_out_axis == 0

    @property
    def lies_by_output(self) -> bool:
        """Whether a contiguous weight lies in memory as the matrix transposed, as of `nn.Linear` and `nn.ConvNd`."""
        return self.fan_out_axis == 0

    @property
    def rows_per_channel(self) -> int:
        """Neighbouring rows that belong to one input channel: the kernel's positions."""
        channel_axis = next(axis for axis in range(len(self.shape)) if axis != self.fan_out_axis)
        return self.fan_in // (self.shape[channel_axis] // self.groups)

    def matrix(self, weight: Tensor) -> Tensor:
        """The fan-in × fan-out matrix of a weight; leading dimensions beyond ``shape`` are batch dimensions."""
        batch = self._batch(weight, self.shape)
        if self.is_transposed_matrix:  # the common case, without three more views
            return weight.mT
        grouped = weight.reshape(*batch, self.groups, self.shape[0] // self.groups, *self.shape[1:])
        if self.groups == 1:
            grouped = grouped.squeeze(len(batch))
            rows_first = grouped.movedim(len(batch) + self.fan_out_axis, -1)
        else:
            rows_first = grouped.movedim((len(batch), len(batch) + 1 + self.fan_out_axis), (-2, -1))
        return rows_first.reshape(*batch, self.fan_in, self.fan_out)

    def weight(self, matrix: Tensor) -> Tensor:
        """The weight in its own layout: the inverse of `matrix`."""
        batch = self._batch(matrix, (self.fan_in, self.fan_out))
        if self.is_transposed_matrix:
            return matrix.mT
        rest = [size for axis, size in enumerate(self.shape) if axis != self.fan_out_axis]
        rest[0] //= self.groups
        columns = self.fan_out // self.groups
        if self.groups == 1:
            return matrix.reshape(*batch, *rest, columns).movedim(-1, len(batch) + self.fan_out_axis)
        grouped = matrix.reshape(*batch, *rest, self.groups, columns)
        grouped = grouped.movedim((-2, -1), (len(batch), len(batch) + 1 + self.fan_out_axis))
        return grouped.reshape(*batch, *self.shape)

    def _batch(self, tensor: Tensor, event: tuple[int, ...]) -> tuple[int, ...]:
        if tensor.shape == event:  # the common case
            return ()
        split = tensor.ndim - len(event)
        if split < 0 or tuple(tensor.shape[split:]) != tuple(event):
            raise ShapeMismatch(
                f"A tensor of trailing shape {tuple(event)} was expected for a weight of shape {self.shape}",
                got=tuple(tensor.shape),
            )
        return tuple(tensor.shape[:split])
