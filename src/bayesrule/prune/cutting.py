"""A network made smaller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from bayesrule.prune.layers import channel_axes, fan, is_depthwise
from bayesrule.prune.plan import Cut, Indices


class Select(nn.Module):
    """Picks the inputs that a layer still reads.

    Args:
        indices: Which, in order.
        dim: Where they lie, counted from the end.
        inputs: How many there were, for `repr`.
    """

    indices: Tensor

    def __init__(self, indices: Sequence[int], dim: int, inputs: int) -> None:
        super().__init__()
        self.dim, self.inputs = dim, inputs
        self.register_buffer("indices", torch.tensor(indices, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Those entries of the dimension."""
        return x.index_select(self.dim, self.indices)

    def extra_repr(self) -> str:
        """How many of how many."""
        return f"{len(self.indices)} of {self.inputs}, dim={self.dim}"


@torch.no_grad()
def apply(net: nn.Module, cuts: Sequence[Cut]) -> None:
    """Cut layers of a network. Changes it: callers own it."""
    for cut in cuts:
        module = net.get_submodule(cut.layer)
        if not isinstance(module, nn.Linear | _ConvNd) or is_depthwise(module):
            _cut_per_unit(module, cut)
            continue
        inputs, _ = fan(module)
        _cut_layer(module, cut)
        if cut.select is not None:
            _put_select(net, cut, module, inputs)


def _cut_layer(module: nn.Module, cut: Cut) -> None:
    out_axis, in_axis = channel_axes(module)
    inputs = cut.inputs if cut.select is None else cut.select
    if cut.absorbed is not None:
        unit, added = cut.absorbed
        kernel = cast(Tensor, module.weight).select(in_axis, unit)
        kernel.copy_(kernel.double() + added.reshape(kernel.shape).to(kernel.device))
    _keep(module, "weight", cut.outputs, out_axis)
    _keep(module, "weight", inputs, in_axis)
    _keep(module, "bias", cut.outputs)
    weight = cast(Tensor, module.weight)
    if cut.blank:
        weight.zero_()
    sizes = weight.shape[in_axis], weight.shape[out_axis]
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = sizes
    else:
        conv = cast(_ConvNd, module)
        conv.in_channels, conv.out_channels = sizes
    if cut.offset is not None:
        if cast("Tensor | None", module.bias) is None:
            zeros = weight.new_zeros(weight.shape[out_axis])
            module.bias = nn.Parameter(zeros, requires_grad=weight.requires_grad)
        bias = cast(Tensor, module.bias)
        bias.copy_(bias.double() + cut.offset.to(bias.device))


def _cut_per_unit(module: Any, cut: Cut) -> None:
    if isinstance(module, nn.Embedding):
        _keep(module, "weight", cut.outputs, 1)
        module.embedding_dim = module.weight.shape[1]
        return
    for name in ("weight", "bias", "running_mean", "running_var"):
        _keep(module, name, cut.outputs)
    if cut.outputs is None:
        return
    if isinstance(module, _NormBase):
        module.num_features = len(cut.outputs)
    elif isinstance(module, _ConvNd):
        module.groups = module.in_channels = module.out_channels = len(cut.outputs)
    elif isinstance(module, nn.GroupNorm):
        module.num_channels = len(cut.outputs)
        module.num_groups = module.num_groups if cut.groups is None else cut.groups
    else:
        module.num_parameters = len(cut.outputs)


def _keep(module: nn.Module, name: str, indices: Indices | None, axis: int = 0) -> None:
    tensor = getattr(module, name, None)
    if tensor is None or indices is None:
        return
    left = tensor.detach().index_select(axis, torch.tensor(indices, device=tensor.device))
    if isinstance(tensor, nn.Parameter):
        setattr(module, name, nn.Parameter(left, requires_grad=tensor.requires_grad))
    else:
        setattr(module, name, left)


def _put_select(net: nn.Module, cut: Cut, module: nn.Module, inputs: int) -> None:
    weight = cast(Tensor, module.weight)
    dim = -1 if isinstance(module, nn.Linear) else 1 - weight.ndim
    select = Select(cast(Indices, cut.select), dim, inputs).to(weight.device)
    parent, _, name = cut.layer.rpartition(".")
    pair = nn.Sequential(OrderedDict(select=select, layer=module))
    pair.train(module.training)
    net.get_submodule(parent)._modules[name] = pair
