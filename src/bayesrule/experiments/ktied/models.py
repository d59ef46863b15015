"""The four networks of the paper, and which of their weights are Bayesian   [App. D]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.nn.converter import Bias
from bayesrule.nn.selection import PerLayer
from bayesrule.posteriors import Diagonal, Family, Point


def mlp(inputs: int = 784, hidden: tuple[int, ...] = (400, 400), classes: int = 10) -> nn.Module:
    """784-400-400-10 with rectified linear units."""
    sizes = (inputs, *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


def lenet(classes: int = 100, kernel: int = 5, width: int = 32) -> nn.Module:
    """Two convolutions (width, 2·width channels) with pooling, Dense(512), Dense(classes), on 32×32 images.

    The appendix says 3×3 kernels, but only 5×5 gives the parameter counts of Fig. 6.
    """
    return nn.Sequential(
        nn.Conv2d(3, width, kernel, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel, padding="same"), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * 64, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


class SentimentLSTM(nn.Module):
    """Embedding, LSTM, one logit of its last state. One bias for each gate: PyTorch's second one is frozen at zero."""

    def __init__(self, vocabulary: int = 20_000, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 1)
        with torch.no_grad():
            self.second_bias.zero_()
        self.second_bias.requires_grad_(False)

    @property
    def second_bias(self) -> nn.Parameter:
        """That of the recurrent kernel."""
        return cast(nn.Parameter, self.lstm.bias_hh_l0)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logit of a positive review."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


class PreActivationBlock(nn.Module):
    """BatchNorm, ReLU, convolution, twice, beside a 1×1 projection of the first ReLU's output."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels_in), nn.BatchNorm2d(channels)
        self.projection = nn.Conv2d(channels_in, channels, 1, stride)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """``conv2(act(conv1(a))) + projection(a)``, ``a = act(x)``."""
        active = F.relu(self.norm1(x))
        return self.conv2(F.relu(self.norm2(self.conv1(active)))) + self.projection(active)


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    """That of TensorFlow Probability's CIFAR-10 example: one block a stage, a projection in every block."""
    widths = [width * 2**stage for stage in range(4)]
    blocks = [
        PreActivationBlock(before, after, 1 if stage == 0 else 2)
        for stage, (before, after) in enumerate(zip([width, *widths], widths, strict=False))
    ]
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *blocks,
        nn.BatchNorm2d(widths[-1]), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(widths[-1], classes),
    )  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A network and the way it is made Bayesian.

    Attributes:
        network: Makes it.
        small: Makes a small one of the same shape, for made-up data.
        dataset: What it is trained on.
        bias: Of `bayesianize`.
        posterior: From the family of its tied layers to the families of all.
    """

    network: Callable[[], nn.Module]
    small: Callable[[], nn.Module]
    dataset: str
    bias: Bias
    posterior: Callable[[Family], PerLayer[Family]]
    batch_size: int = 1024
    validation: int = 10_000


def _tied_dense(family: Family) -> PerLayer[Family]:
    """Convolutions keep free standard deviations   [App. D.4]."""
    return {nn.Conv2d: Diagonal(family.init_std, family.init_spread), "*": family}


def _tied_cell(family: Family) -> PerLayer[Family]:
    """Only kernel and recurrent kernel are Bayesian   [App. D.2]."""
    return {nn.LSTM: family, "*": Point()}


MODELS: dict[str, Model] = {
    "mlp": Model(mlp, lambda: mlp(hidden=(20, 20)), "mnist", "diagonal", lambda family: family),
    "lenet": Model(lenet, lambda: lenet(width=4), "cifar-100", "diagonal", _tied_dense),
    "lstm": Model(SentimentLSTM, lambda: SentimentLSTM(width=8), "imdb", "point", _tied_cell, 128, 5_000),
    "resnet18": Model(
        resnet18, lambda: resnet18(width=4), "cifar-10", "point", lambda family: family, 128, 0
    ),
}  # fmt: skip


def he_means(net: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Kernels from ``N(0, 2/fan_in)``, biases zero, in place; an embedding keeps its own start."""
    for module in net.modules():
        if isinstance(module, nn.Embedding):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter, generator=generator)
            elif name.startswith("bias"):
                nn.init.zeros_(parameter)
    return net


def normal_means(net: nn.Module, std: float = 0.1, generator: torch.Generator | None = None) -> nn.Module:
    """Kernels from ``N(0, std²)``, biases zero, in place: the start of the ResNet   [App. D.2]."""
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=std, generator=generator)
            elif name == "bias":
                nn.init.zeros_(parameter)
    return net
