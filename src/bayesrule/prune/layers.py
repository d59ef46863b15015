"""Layers with a weight that can be cut, and why others cannot."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

PER_UNIT_LAYERS = (nn.Embedding, _NormBase, nn.GroupNorm, nn.PReLU)
"""Which keep numbers for each unit, and can be cut with it."""
FUSED = (
    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder,
    nn.TransformerDecoder, nn.Transformer,
)  # fmt: skip


@dataclass(frozen=True)
class Obstacle:
    """Why a layer is left whole.

    Attributes:
        module: The name of what stands in the way: the layer itself, or a fused module around it.
        why: The reason, said of that module.
    """

    module: str
    why: str

    def note(self, layer: str) -> str:
        """The reason, for the table's row of a layer."""
        return self.why if layer == self.module else f"part of {self.module!r}: {self.why}"


def is_layer(module: nn.Module) -> bool:
    """Whether it is a layer whose inputs and outputs can be cut, or one like it that `why_not` speaks of."""
    return isinstance(module, nn.Linear | _ConvNd)


def is_depthwise(module: nn.Module | None) -> bool:
    """Whether every channel is convolved by itself, into one: it can be cut with its channel, like a normalisation."""
    return isinstance(module, _ConvNd) and 1 < module.groups == module.in_channels == module.out_channels


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


def passes_on(module: nn.Module, constant: Float[Tensor, " units"]) -> Bool[Tensor, " units"]:
    """Which inputs add a constant to the outputs: those that are one, unless a border of zeros beside them shows."""
    return ~constant.isnan() & (keeps_constants(module) | (constant == 0))


def uncuttable(net: nn.Module, graph: fx.Graph | None, names: set[str]) -> dict[str, Obstacle]:
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
        module, around = net.get_submodule(layer), _fused_around(net, layer)
        if around is not None:
            found[layer] = Obstacle(around, "its projections are cut into heads by one fused function")
            continue
        own = dict(module.named_parameters(prefix=layer, recurse=False))
        tied = [
            f"{name.rpartition('.')[2]} is also {other!r}"
            for name, parameter in own.items() for other in owners[parameter] if other != name
        ]  # fmt: skip
        if why := _why_not(module, calls[layer], tied, bool(read & set(own))):
            found[layer] = Obstacle(layer, why)
    return found


def _fused_around(net: nn.Module, layer: str) -> str | None:
    """The outermost fused module that holds the layer, or is it."""
    names = layer.split(".") if layer else []
    outside_in = (".".join(names[:depth]) for depth in range(len(names) + 1))
    return next((name for name in outside_in if isinstance(net.get_submodule(name), FUSED)), None)


def _keeps_numbers(module: nn.Module) -> bool:
    """Whether it keeps numbers for each unit; an activation with one number for all of them does not."""
    return isinstance(module, PER_UNIT_LAYERS) and not (isinstance(module, nn.PReLU) and module.num_parameters == 1)


def _why_not(module: nn.Module, calls: int, tied: list[str], read: bool) -> str:
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "its units feed back into themselves at every step"
    if isinstance(module, _ConvNd) and module.groups > 1 and not is_depthwise(module):
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
