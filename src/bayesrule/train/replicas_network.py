"""Many alike multilayer perceptrons as batched matrices: their forward pass, and the way back by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Start = Literal["linear", "he"]
Matrices = list[Tensor]
"""One for each layer: (replicas, fan-in + 1, fan-out), the bias the last row."""


@dataclass(frozen=True)
class Layout:
    """Layers and how they are grouped under posteriors.

    Attributes:
        shapes: Fan-in, the bias counted, and fan-out of each layer.
        joint: Whether all layers are one vector, entries row by row; else each is a matrix.
    """

    shapes: tuple[tuple[int, int], ...]
    joint: bool

    @classmethod
    def of(cls, widths: Sequence[int], joint: bool) -> Layout:
        """Of a perceptron with these widths, from the inputs to the outputs."""
        return cls(tuple((fan_in + 1, fan_out) for fan_in, fan_out in pairwise(widths)), joint)

    @property
    def sizes(self) -> list[int]:
        """Entries of each layer."""
        return [fan_in * fan_out for fan_in, fan_out in self.shapes]

    @property
    def event_dim(self) -> int:
        """Of a group."""
        return 1 if self.joint else 2

    def events(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """Matrices by layer as events by group; leading dimensions are kept."""
        return [torch.cat([each.flatten(-2) for each in matrices], dim=-1)] if self.joint else list(matrices)

    def matrices(self, events: Sequence[Tensor]) -> Matrices:
        """The way back."""
        return self.unflatten(events[0]) if self.joint else list(events)

    def unflatten(self, vector: Float[Tensor, "*batch entries"]) -> Matrices:
        """The layers in one vector."""
        parts = vector.split(self.sizes, dim=-1)
        return [part.unflatten(-1, shape) for part, shape in zip(parts, self.shapes, strict=True)]


@dataclass(frozen=True)
class Pass:
    """A forward pass, and what the way back needs of it.

    Attributes:
        outputs: Of the networks.
        inputs: Of each layer, with a constant one.
        weights: They were passed through.
    """

    outputs: Float[Tensor, "replicas rows outputs"]
    inputs: list[Float[Tensor, "replicas rows _"]]
    weights: Matrices

    def pull(self, cotangents: Float[Tensor, "replicas columns rows outputs"]) -> list[Tensor]:
        """Gradients at each layer's pre-activations, under several gradients at the outputs at once.

        ``g_{l} = (g_{l+1} W_{l+1}ᵀ) ∘ 1[s_l > 0]``: a ReLU's slope is read off its output.
        """
        found = [cotangents]
        for weight, inputs in zip(self.weights[:0:-1], self.inputs[:0:-1], strict=True):
            above, kernel = found[-1], weight[..., :-1, :]
            below = (above.flatten(-3, -2) @ kernel.mT).unflatten(-2, above.shape[-3:-1])
            found.append(below * (inputs[..., :-1] > 0).unsqueeze(-3))
        return found[::-1]


def forward(weights: Matrices, x: Float[Tensor, "replicas rows features"]) -> Pass:
    """``h_{l+1} = relu([h_l, 1] W_l)``, the last layer without; the inputs have their constant one already."""
    inputs = [x]
    for weight in weights[:-1]:
        inputs.append(F.pad((inputs[-1] @ weight).relu_(), (0, 1), value=1.0))
    return Pass(inputs[-1] @ weights[-1], inputs, weights)


def initial_weights(layout: Layout, generator: torch.Generator, like: Tensor, start: Start = "linear") -> Matrices:
    """Of one network: uniform within ``1/√fan-in`` as in `nn.Linear`, or ``N(0, 2/fan-in)`` without biases (He)."""
    found = []
    for shape in layout.shapes:
        if start == "linear":
            weight = (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1).mul((shape[0] - 1) ** -0.5)
        else:
            weight = torch.randn(shape, generator=generator, dtype=torch.float64).mul((2 / (shape[0] - 1)) ** 0.5)
            weight[-1] = 0
        found.append(weight.to(like))
    return found
