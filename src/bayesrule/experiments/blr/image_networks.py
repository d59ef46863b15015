"""The networks that are trained on images: ordinary ones, with dropout on request, and those for binary weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from bayesrule.experiments.ktied.models import PreActivationBlock, he_means, mlp, resnet18

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "small-mlp": lambda: mlp(hidden=(20, 20)),
    "resnet": lambda: resnet18(width=16),
    "small-resnet": lambda: resnet18(width=2),
    "binary-mlp": lambda: normalised_mlp((1024, 1024)),
    "small-binary-mlp": lambda: normalised_mlp((20, 20)),
    "binary-convolutional": lambda: normalised_convolutions(32),
    "small-binary-convolutional": lambda: normalised_convolutions(4),
}
"""By name; the small ones are for made-up data."""


def with_dropout(net: nn.Module, rate: float) -> nn.Module:
    """Dropout after every hidden activation of a perceptron, or whole channels after every residual block."""
    layers: list[nn.Module] = []
    for layer in net.children():
        layers.append(layer)
        if isinstance(layer, PreActivationBlock):
            layers.append(nn.Dropout2d(rate))
        elif isinstance(layer, nn.ReLU):
            layers.append(nn.Dropout(rate))
    return nn.Sequential(*layers)


def normalised_mlp(hidden: tuple[int, ...], inputs: int = 784, classes: int = 10) -> nn.Sequential:
    """Linear layers without biases, each followed by batch normalisation   [Meng et al. 2020, App. B].

    Only the last normalisation has a scale and a shift: without, outputs could not be certain.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise((inputs, *hidden)):
        layers += [nn.Linear(fan_in, fan_out, bias=False), nn.BatchNorm1d(fan_out, affine=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], classes, bias=False), nn.BatchNorm1d(classes))


def normalised_convolutions(width: int, classes: int = 10) -> nn.Sequential:
    """Six 3×3 convolutions in three stages of growing width, with pooling, on 32×32 images; normalised likewise."""
    layers: list[nn.Module] = []
    channels = 3
    for stage in (width, 2 * width, 4 * width):
        for fan_in in (channels, stage):
            layers += [
                nn.Conv2d(fan_in, stage, 3, padding=1, bias=False),
                nn.BatchNorm2d(stage, affine=False),
                nn.ReLU(),
            ]
        layers.append(nn.MaxPool2d(2))
        channels = stage
    return nn.Sequential(
        *layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(channels, classes, bias=False), nn.BatchNorm1d(classes)
    )


def started(name: str, dropout: float, seed: int) -> nn.Module:
    """A network by name, with kernels by He's rule."""
    net = NETWORKS[name]()
    net = with_dropout(net, dropout) if dropout else net
    return he_means(net, torch.Generator().manual_seed(seed))
