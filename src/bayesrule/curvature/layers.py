"""Linear and convolutional layers as fan-in × fan-out matrices of trainable parameters, to be tapped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from bayesrule.contractions import Augmented, Contraction, Conv, Linear
from bayesrule.errors import Unsupported
from bayesrule.posteriors import Part


@dataclass(frozen=True)
class Layer:
    """The trainable parameters of a Linear, a Conv2d or a part of a fused module, as one matrix, the bias a last row.

    ``s = op(a, W) + b`` is linear in the matrix, with a constant one as the bias's input: the gradient of an example is
    ``Σ_t a_t g_tᵀ`` over the positions t (of a convolution, a sequence, or several uses of one weight).

    Attributes:
        modules: Names of the modules that use these parameters: several, where they are tied.
        parts: The trainable ones among weight and bias, by their names in the model.
        contraction: The layer without its bias.
    """

    modules: tuple[str, ...]
    parts: tuple[Part, ...]
    contraction: Linear | Conv

    @property
    def name(self) -> str:
        """That of its first parameter."""
        return self.parts[0].name

    @property
    def has_weight(self) -> bool:
        """Whether the weight is among the trainable parameters."""
        return any(not isinstance(part.layout, tuple) for part in self.parts)

    @property
    def has_bias(self) -> bool:
        """Whether the bias is."""
        return any(isinstance(part.layout, tuple) for part in self.parts)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Fan-in (with the bias's row) and fan-out."""
        return sum(part.length(2) for part in self.parts), self.contraction.view.fan_out

    @property
    def augmented(self) -> Contraction:
        """The contraction of the whole matrix."""
        if not self.has_weight:
            raise Unsupported(
                f"The bias {self.name!r} alone is no contraction of its layer's input",
                remedy="Train the weight with it, or untie it.",
            )
        return Augmented(self.contraction) if self.has_bias else self.contraction

    def input_rows(self, x: Tensor, output: Tensor) -> Float[Tensor, "rows fan_in"]:
        """``a``: one row for every example and position, with the bias's constant one."""
        rows = self._unfolded(x) if self.has_weight else x.new_empty((self._count(output), 0))
        return torch.cat((rows, rows.new_ones(()).expand(len(rows), 1)), dim=-1) if self.has_bias else rows

    def output_rows(self, output: Tensor) -> Float[Tensor, "rows fan_out"]:
        """``s`` (or its gradient), likewise."""
        return output.movedim(self.contraction.channel_dim, -1).reshape(-1, self.shape[1])

    def _count(self, output: Tensor) -> int:
        return output.numel() // self.shape[1]

    def _unfolded(self, x: Tensor) -> Tensor:
        if isinstance(self.contraction, Linear):
            return x.reshape(-1, x.shape[-1])
        return unfold(self.contraction, x)


def unfold(conv: Conv, x: Tensor) -> Float[Tensor, "rows fan_in"]:
    """The patches a two-dimensional convolution multiplies its weight with, rows in the order of its outputs."""
    if x.ndim == 3:  # one image without a batch dimension
        x = x.unsqueeze(0)
    if any(conv.edge_padding):
        x = F.pad(x, conv.edge_padding, mode="constant" if conv.padding_mode == "zeros" else conv.padding_mode)
    patches = F.unfold(x, conv.view.shape[2:], dilation=conv.dilation, stride=conv.stride)
    return patches.mT.reshape(-1, conv.view.fan_in)


def example_count(outputs: Tensor) -> int:
    """Targets of a batch: the last dimension of a network's outputs belongs to one target, the others count them."""
    return len(outputs) if outputs.ndim == 1 else math.prod(outputs.shape[:-1])


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which second moments, means and other states are kept: float32 for half precision."""
    return torch.promote_types(dtype, torch.float32)
