"""The networks of the paper   [Sec. 5.1–5.3]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import nn


def fully_connected(inputs: int = 784, hidden: tuple[int, ...] = (300, 300, 300), classes: int = 10) -> nn.Module:
    """784-300-300-300-10 with exponential linear units   [Sec. 5.1]."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise((inputs, *hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ELU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], classes))


def convolutional(width: int = 10, classes: int = 10) -> nn.Module:
    """1-10-mp-20-mp-40-mp-80-mp, flattened to 80, then 10: for 28×28 images   [Sec. 5.1]."""
    widths = [(width * 2**stage,) for stage in range(4)]
    return nn.Sequential(*_blocks(1, widths), nn.Flatten(), nn.Linear(8 * width, classes))


def vgg(width: int = 10, classes: int = 10) -> nn.Module:
    """Four blocks of three convolutions and a pooling, flattened to 8·width, then 10: for 32×32 images   [Sec. 5.2].

    Width 10 has 62,270 weights, the "4× version" of width 20 has 246,940, biases not counted.
    """
    widths = [(width * scale,) * 3 for scale in (1, 2, 4, 2)]
    return nn.Sequential(*_blocks(3, widths), nn.Flatten(), nn.Linear(8 * width, classes))


def _blocks(channels: int, widths: Sequence[Sequence[int]]) -> list[nn.Module]:
    """3×3 convolutions with exponential linear units; each block ends with 2×2 max-pooling."""
    layers: list[nn.Module] = []
    for block in widths:
        for fan_out in block:
            layers += [nn.Conv2d(channels, fan_out, 3, padding=1), nn.ELU()]
            channels = fan_out
        layers.append(nn.MaxPool2d(2))
    return layers


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "fc": fully_connected,
    "fc512": lambda: fully_connected(hidden=(512, 512)),
    "cnn": convolutional,
    "vgg": vgg,
    "vgg4x": lambda: vgg(20),
}


def he_start(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """Kernels from ``N(0, 2/fan_in)``, that of the last layer from ``N(0, 1/fan_in)``, biases zero, in place."""
    kernels = [parameter for parameter in net.parameters() if parameter.ndim > 1]
    for kernel in kernels:
        nn.init.kaiming_normal_(kernel, nonlinearity="linear" if kernel is kernels[-1] else "relu", generator=generator)
    for parameter in net.parameters():
        if parameter.ndim == 1:
            nn.init.zeros_(parameter)
    return net
