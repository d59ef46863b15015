"""Networks to prune, models with known noise, and the masked network by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.nn import BayesianModule

STD = 1e-3
ACTIVATIONS = [nn.ReLU, nn.ELU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Softplus, lambda: nn.Softshrink(0.01), nn.PReLU]


def with_statistics(net: nn.Module) -> nn.Module:
    """In evaluation, with normalisations and biases that have seen something."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm) and module.weight is not None:
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return net.double().eval()


def model(net: nn.Module, masks: dict[str, Tensor], **options: Any) -> BayesianModule:
    """Converted, with means far above the noise where a mask is True, and far below it, yet not zero, elsewhere."""
    bnn = br.bayesianize(net, br.Diagonal(init_std=STD, init_spread=0.0), **options)
    homes = bnn.homes()
    with torch.no_grad():
        for name, mask in masks.items():
            mean = homes[name].mean
            strong = mean.sign() * mean.abs().clamp_min(10 * STD)
            mean.copy_(torch.where(mask, strong, 1e-3 * STD * torch.where(mean < 0, -1.0, 1.0)))
    return bnn


def masked_by_hand(bnn: BayesianModule, masks: dict[str, Tensor]) -> nn.Module:
    plain = br.mean_module(bnn)
    with torch.no_grad():
        for name, mask in masks.items():
            plain.get_parameter(name).mul_(mask)
    return plain


def tried(bnn: BayesianModule, **options: object) -> nn.Module | InvalidArgument:
    """The pruned network, or why there is none."""
    try:
        return br.prune(bnn, **options)
    except InvalidArgument as refusal:
        return refusal


def random_masks(net: nn.Module, generator: torch.Generator, entries: float = 0.3) -> dict[str, Tensor]:
    """Single entries, and whole outputs and inputs, dropped; never all of a weight."""
    masks = {}
    for name, parameter in net.named_parameters():
        if parameter.ndim < 2:
            continue
        mask = torch.rand(parameter.shape, generator=generator) > entries
        for axis in (0, 1):
            gone = torch.rand(parameter.shape[axis], generator=generator) < 0.4 * torch.rand((), generator=generator)
            mask.transpose(0, axis)[gone] = False
        mask.reshape(-1)[int(torch.randint(mask.numel(), (), generator=generator))] = True
        masks[name] = mask
    return masks


def mlp(widths: list[int], activation: Any, *, norm: bool, bias: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers.append(nn.Linear(fan_in, fan_out, bias=bias))
        layers += [nn.BatchNorm1d(fan_out)] if norm else []
        layers += [activation(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3, bias=bias))


class ConvNet(nn.Module):
    """Convolutions with a residual sum between, pooled, flattened and read by two linear layers."""

    def __init__(
        self, channels: int, activation: Any, *, padding: int, norm: str, bias: bool, residual: bool, mean: bool
    ) -> None:
        super().__init__()
        self.residual, self.mean = residual, mean
        self.stem = nn.Conv2d(2, channels, 3, padding=1, bias=bias)
        self.norm = nn.Identity() if norm == "none" else _norm(norm, channels)
        self.inner = nn.Conv2d(channels, 4, 3, padding=padding, bias=bias)
        self.inner_norm = nn.Identity() if norm == "none" else _norm(norm, 4)
        self.outer = nn.Conv2d(4, channels, 1 if padding else 3, padding=0 if padding else 2, bias=bias)
        self.pool, self.act = nn.MaxPool2d(2), activation()
        self.hidden = nn.Linear(channels if mean else channels * 9, 5, bias=bias)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.stem(x)))
        y = self.outer(self.act(self.inner_norm(self.inner(x))))
        x = self.pool(F.elu(x + y if self.residual else y))
        x = x.mean((2, 3)) if self.mean else x.view(x.size(0), -1)
        return self.out(torch.tanh(self.hidden(x)))


def _norm(kind: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(2, channels)
