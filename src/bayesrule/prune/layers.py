"""Layers with a weight that can be cut, and why others cannot."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

PER_UNIT_LAYERS = (nn.Embedding, _NormBase, nn.GroupNorm, nn.PReLU)
"""Which keep numbers for each unit, and can be cut with it."""
FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.Transformer)


def is_layer(module: nn.Module) -> bool:
    """Whether it is a layer whose inputs and outputs can be cut, or one like it that `why_not` speaks of."""
    return isinstance(module, nn.Linear | _ConvNd)


def channel_axes(module: nn.Module) -> tuple[int, int]:
    """Where outputs and inputs lie in the layer's weight."""
    return (1, 0) if isinstance(module, _ConvTransposeNd) else (0, 1)


def fan(module: nn.Module) -> tuple[int, int]:
    """Its inputs (features or channels) and outputs."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    conv = cast(_ConvNd, module)
    return conv.in_channels, conv.out_channels


def kernels(module: nn.Module) -> Float[Tensor, "outputs inputs positions"]:
    """The weight of a layer, in double precision."""
    weight = cast(Tensor, module.weight).detach().double()
    if isinstance(module, _ConvTransposeNd):
        weight = weight.transpose(0, 1)
    return weight.flatten(2) if weight.ndim > 2 else weight[..., None]


def bias_of(module: nn.Module, outputs: int) -> Float[Tensor, " outputs"]:
    """Its bias, or zeros, in double precision."""
    bias = cast("Tensor | None", module.bias)
    weight = cast(Tensor, module.weight)
    return weight.new_zeros(outputs, dtype=torch.float64) if bias is None else bias.detach().double()


def keeps_constants(module: nn.Module) -> bool:
    """Whether a constant input channel adds a constant to the outputs: not where the border is padded by zeros."""
    if isinstance(module, nn.Linear):
        return True
    conv = cast(_ConvNd, module)
    if isinstance(conv, _ConvTransposeNd):
        return False
    padded = conv.padding == "same" or (conv.padding != "valid" and any(conv.padding))
    return not padded or conv.padding_mode != "zeros"


def uncuttable(net: nn.Module, graph: fx.Graph | None, names: set[str]) -> dict[str, str]:
    """Why modules cannot be cut, by their names: those with weights to be pruned, and whatever else could be.

    Args:
        net: The plain network.
        graph: Of its forward pass; None for a network that is one layer.
        names: The weights to be pruned.
    """
    layers = {name.rpartition(".")[0] for name in names}
    layers |= {name for name, module in net.named_modules() if is_layer(module) or _keeps_numbers(module)}
    nodes = list(graph.nodes) if graph else []
    calls = Counter(str(node.target) for node in nodes if node.op == "call_module") if graph else Counter({"": 1})
    read = {str(node.target) for node in nodes if node.op == "get_attr"}
    owners: dict[Tensor, list[str]] = defaultdict(list)
    for name, parameter in net.named_parameters(remove_duplicate=False):
        owners[parameter].append(name)
    found = {}
    for layer in sorted(layers):
        module = net.get_submodule(layer)
        own = dict(module.named_parameters(prefix=layer, recurse=False))
        tied = [
            f"{name.rpartition('.')[2]} is also {other!r}"
            for name, parameter in own.items() for other in owners[parameter] if other != name
        ]  # fmt: skip
        if why := _why_not(module, calls[layer], tied, bool(read & set(own))):
            found[layer] = why
    return found


def _keeps_numbers(module: nn.Module) -> bool:
    """Whether it keeps numbers for each unit; an activation with one number for all of them does not."""
    return isinstance(module, PER_UNIT_LAYERS) and not (isinstance(module, nn.PReLU) and module.num_parameters == 1)


def _why_not(module: nn.Module, calls: int, tied: list[str], read: bool) -> str:
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "its units feed back into themselves at every step"
    if isinstance(module, FUSED):
        return "its projections are cut into heads by one fused function"
    if isinstance(module, _ConvNd) and module.groups > 1:
        return f"each of its {module.groups} groups sees channels of its own"
    if tied:
        return f"its {', its '.join(tied)}"
    if calls > 1:
        return f"it is called {calls} times in a pass"
    if calls == 0 or read:
        return "its weight is read by something else than its own forward"
    if not is_layer(module) and not isinstance(module, PER_UNIT_LAYERS):
        return f"a {type(module).__name__} has no inputs and outputs of its own to cut"
    return "it has hooks" if module._forward_hooks or module._forward_pre_hooks else ""
