"""Any module that is linear in one of its weights, through `torch.func.functional_call`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bayesrule.contractions.contraction import Contraction, example_signs
from bayesrule.linalg import MatrixView


@dataclass(frozen=True)
class Generic(Contraction):
    """``op(x, W)`` is the module called with its weight replaced by W and every other parameter by zero.

    It needs no knowledge of the layer, at the price of padding narrow matrices to the layer's width.

    Attributes:
        module: Called as it is; linear in the parameter ``name`` once its other parameters are zero.
        name: Which parameter is the weight.
        view: The weight's matrix view.
        channel_axis: Where channels lie in inputs and outputs, counted from the end.
        groups: Into how many runs of channels the layer is split, each fan-out run seeing one fan-in run.
    """

    module: nn.Module
    name: str
    view: MatrixView
    channel_axis: int = -1
    groups: int = 1

    @property
    def channel_dim(self) -> int:
        """As given."""
        return self.channel_axis

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``op(x, W)``."""
        others = {name: torch.zeros_like(value) for name, value in self.module.named_parameters()}
        return functional_call(self.module, others | {self.name: self.view.weight(matrix)}, (x,))

    def square(self, x: Tensor) -> Tensor:
        """``x²``; an index stays itself."""
        return x.square() if x.is_floating_point() else x

    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """The columns in runs of one group's width, the last one padded with zeros, repeated for each group."""
        width = self.view.fan_out // self.groups
        outputs = []
        for columns in matrix.split(width, dim=-1):
            padded = F.pad(columns, (0, width - columns.shape[-1])).tile(self.groups)
            channels = self(x, padded).movedim(self.channel_dim, -1).unflatten(-1, (self.groups, width))
            outputs.append(channels[..., : columns.shape[-1]])
        return torch.cat(outputs, dim=-1).flatten(-2).movedim(-1, self.channel_dim)

    def rows(self, x: Tensor) -> int:
        """As many as the input has: a generic layer is taken to keep its positions."""
        return x.numel() // x.shape[self.channel_dim] if x.is_floating_point() else x.numel()

    def sign_shape(self, x: Tensor) -> tuple[int, ...] | None:
        """One for each example and input channel."""
        return example_signs(x, self.channel_dim, -self.channel_dim) if x.is_floating_point() else None
