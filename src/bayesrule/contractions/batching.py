"""Which networks take many draws of their weights at once."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd

UNFIT = (_ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
"""Layers that take batches of weights (`torch.func.vmap`) badly or not at all."""


def takes_batches(net: nn.Module) -> bool:
    """Whether a network is free of convolutions and recurrent layers, which take batches of weights badly."""
    return not any(isinstance(module, UNFIT) for module in net.modules())
