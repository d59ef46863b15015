"""Examples of layers: each a contraction beside the module it stands for, and an input.

A new contraction joins every contract suite by one entry here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor, nn

from bayesrule.contractions import Augmented, Contraction, Conv, ConvTranspose, Embedding, Generic, Linear


@dataclass(frozen=True)
class Layer:
    """``contraction(x, matrix)`` is to equal ``module(x)``."""

    contraction: Contraction
    module: nn.Module
    x: Tensor

    @cached_property
    def matrix(self) -> Tensor:
        """The module's weight as a fan-in × fan-out matrix; the bias, where there is one, as its last row."""
        if isinstance(self.contraction, Augmented):
            weight = self.contraction.inner.view.matrix(self.module.weight)
            return torch.cat([weight, self.module.bias[None]]).detach()
        return self.contraction.view.matrix(self.module.weight).detach()

    @cached_property
    def batched(self) -> bool:
        """Whether dimension 0 of input and output counts examples."""
        return self.output.ndim > -self.contraction.channel_dim

    @cached_property
    def output(self) -> Tensor:
        return self.module(self.x).detach()

    @cached_property
    def positions(self) -> Tensor:
        """(positions, fan-out): where each output row has its channels in the flattened output."""
        output = self.output
        index = torch.arange(output.numel()).reshape(output.shape)
        return index.movedim(self.contraction.channel_dim, -1).reshape(-1, self.contraction.view.fan_out)

    @cached_property
    def fixed(self) -> Tensor:
        """Which entries of the flattened output are never random: those of padding."""
        if not isinstance(self.contraction, Embedding):
            return torch.zeros(self.output.numel(), dtype=torch.bool)
        padding = self.x == (-1 if self.contraction.padding_idx is None else self.contraction.padding_idx)
        return padding.unsqueeze(-1).expand_as(self.output).flatten()

    @cached_property
    def linear_map(self) -> Tensor:
        """J of ``op(x, W) = J vec W``, column by column: no gradient is asked for."""
        fan_in, fan_out = self.matrix.shape
        basis = torch.eye(fan_in * fan_out, dtype=torch.float64).reshape(-1, fan_in, fan_out)
        return torch.stack([self.contraction(self.x, element).flatten() for element in basis], dim=1)


def _fast(kind: type[Linear | Conv | ConvTranspose], module: nn.Module, *shape: int) -> Layer:
    return Layer(kind.of(module), module, torch.randn(shape))


def _lookup(indices: list[int] | list[list[int]] | int, padding_idx: int | None = None) -> Layer:
    module = nn.Embedding(5, 3, padding_idx=padding_idx)
    nn.init.normal_(module.weight)  # a padding row other than zero, so that it is seen
    return Layer(Embedding.of(module), module, torch.tensor(indices))


def _augmented(kind: type[Linear | Conv], module: nn.Module, *shape: int) -> Layer:
    return Layer(Augmented(kind.of(module)), module, torch.randn(shape))


def _generic(fast: Layer) -> Layer:
    kind = fast.contraction
    return Layer(Generic(fast.module, "weight", kind.view, kind.channel_dim, kind.groups), fast.module, fast.x)


_RECIPES: dict[str, Callable[[], Layer]] = {
    "linear": lambda: _fast(Linear, nn.Linear(4, 3, bias=False), 5, 4),
    "linear-one-output": lambda: _fast(Linear, nn.Linear(3, 1, bias=False), 2, 3),
    "linear-sequence": lambda: _fast(Linear, nn.Linear(3, 4, bias=False), 2, 3, 3),
    "linear-one-example": lambda: _fast(Linear, nn.Linear(4, 3, bias=False), 4),
    "conv1d-stride": lambda: _fast(Conv, nn.Conv1d(2, 3, 3, stride=2, padding=1, bias=False), 2, 2, 6),
    "conv1d-groups": lambda: _fast(Conv, nn.Conv1d(4, 6, 2, dilation=2, groups=2, bias=False), 2, 4, 4),
    "conv1d-one-example": lambda: _fast(Conv, nn.Conv1d(2, 3, 2, bias=False), 2, 5),
    "conv2d-stride": lambda: _fast(
        Conv, nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), bias=False), 2, 2, 4, 3
    ),
    "conv2d-same": lambda: _fast(Conv, nn.Conv2d(2, 2, (3, 1), padding="same", dilation=2, bias=False), 2, 2, 3, 2),
    "conv2d-valid": lambda: _fast(Conv, nn.Conv2d(2, 3, (2, 3), padding="valid", bias=False), 1, 2, 3, 4),
    "conv2d-reflect": lambda: _fast(
        Conv, nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect", bias=False), 2, 1, 3, 2
    ),
    "conv2d-circular": lambda: _fast(
        Conv, nn.Conv2d(2, 2, (1, 3), padding="same", padding_mode="circular", bias=False), 2, 2, 2, 3
    ),
    "conv2d-replicate": lambda: _fast(
        Conv, nn.Conv2d(1, 3, 2, stride=2, padding=(1, 2), padding_mode="replicate", bias=False), 2, 1, 2, 3
    ),
    "conv2d-groups": lambda: _fast(Conv, nn.Conv2d(4, 6, (2, 1), groups=2, bias=False), 2, 4, 3, 1),
    "conv2d-depthwise": lambda: _fast(Conv, nn.Conv2d(3, 6, 2, groups=3, padding=1, bias=False), 1, 3, 2, 2),
    "conv2d-one-example": lambda: _fast(Conv, nn.Conv2d(4, 2, 2, groups=2, padding=1, bias=False), 4, 2, 2),
    "conv3d-stride": lambda: _fast(Conv, nn.Conv3d(2, 2, (2, 1, 2), stride=(1, 1, 2), bias=False), 2, 2, 3, 2, 3),
    "conv3d-replicate": lambda: _fast(
        Conv, nn.Conv3d(1, 2, (1, 2, 2), padding=(0, 1, 0), padding_mode="replicate", bias=False), 1, 1, 2, 2, 2
    ),
    "conv-transpose1d": lambda: _fast(
        ConvTranspose, nn.ConvTranspose1d(3, 2, 3, stride=2, padding=1, output_padding=1, bias=False), 2, 3, 3
    ),
    "conv-transpose1d-dilation": lambda: _fast(
        ConvTranspose, nn.ConvTranspose1d(2, 2, 2, dilation=3, padding=1, bias=False), 2, 4
    ),
    "conv-transpose2d-groups": lambda: _fast(
        ConvTranspose, nn.ConvTranspose2d(4, 6, (2, 1), stride=(2, 1), dilation=2, groups=2, bias=False), 2, 4, 2, 1
    ),
    "conv-transpose2d-depthwise": lambda: _fast(
        ConvTranspose, nn.ConvTranspose2d(3, 3, 2, groups=3, bias=False), 1, 3, 2, 2
    ),
    "conv-transpose3d": lambda: _fast(
        ConvTranspose, nn.ConvTranspose3d(2, 2, (1, 2, 2), stride=(2, 1, 1), bias=False), 1, 2, 2, 1, 2
    ),
    "embedding": lambda: _lookup([[0, 3, 3], [4, 0, 1]]),
    "embedding-padding": lambda: _lookup([2, 1, 4, 1], padding_idx=1),
    "embedding-one-index": lambda: _lookup(3),
    "augmented-linear": lambda: _augmented(Linear, nn.Linear(3, 3), 4, 3),
    "augmented-linear-one-example": lambda: _augmented(Linear, nn.Linear(3, 2), 3),
    "augmented-conv2d-groups": lambda: _augmented(Conv, nn.Conv2d(4, 6, (1, 2), groups=2), 2, 4, 1, 3),
    "generic-linear": lambda: _generic(_RECIPES["linear-sequence"]()),
    "generic-conv2d": lambda: _generic(_RECIPES["conv2d-reflect"]()),
    "generic-conv2d-groups": lambda: _generic(
        _fast(Conv, nn.Conv2d(4, 6, (3, 1), padding="same", groups=2, bias=False), 2, 4, 2, 2)
    ),
    "generic-embedding": lambda: _generic(_RECIPES["embedding"]()),
}

NAMES = sorted(_RECIPES)


@cache
def layer(name: str) -> Layer:
    """The example of this name, the same in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        made = _RECIPES[name]()
    made.module.double()
    return made if made.x.dtype == torch.int64 else Layer(made.contraction, made.module, made.x.double())
