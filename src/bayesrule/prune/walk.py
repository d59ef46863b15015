"""A walk through the graph: which units every tensor has, who writes and reads them, and which are constant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, fx, nn

from bayesrule.prune import operations as ops
from bayesrule.prune.layers import Obstacle, bias_of, fan, is_depthwise, is_layer, kernels, passes_on
from bayesrule.prune.spaces import Spaces, Value, mapped, ranked, varying


@dataclass(frozen=True)
class Reader:
    """A layer that reads units.

    Attributes:
        layer: Its name.
        space: Which units.
        block: Inputs of the layer for each unit.
        reads: Which output reads which unit: some weight between them is not zero.
        constant: What each unit is; NaN where it varies.
        folds: Units whose constant can go into the layer's bias: not where zeros beyond the border meet its kernel.
        offset: What a unit then adds to each output.
    """

    layer: str
    space: int
    block: int
    reads: Bool[Tensor, "outputs units"]
    constant: Float[Tensor, " units"]
    folds: Bool[Tensor, " units"]
    offset: Float[Tensor, "outputs units"]


@dataclass(frozen=True)
class Pin:
    """An operation that needs all units of a tensor.

    Attributes:
        space: Which units.
        where: The operation.
        refused: Whether to refuse to prune if one of them has been dropped: not at the network's inputs and outputs.
        dropped: Units that are constant there.
    """

    space: int
    where: str
    refused: bool
    dropped: Bool[Tensor, " units"]


class Walk:
    """What the graph says about units.

    Attributes:
        spaces: The sets of units.
        readers: Layers that read units, by name.
        writers: The units that a layer or embedding writes, by its name.
        per_unit: The units that a normalisation or a depthwise convolution keeps numbers for, by its name.
        grouped: Likewise for one that mixes the units of a group; how many groups it has.
        pins: What holds units fast.
        open: Sets that no layer writes: inputs of the network, and whatever an unknown operation gives.
        constant_outputs: Whether no output depends on an input.
    """

    def __init__(
        self,
        net: nn.Module,
        graph: fx.Graph,
        shapes: Mapping[fx.Node, tuple[int, ...]],
        uncuttable: Mapping[str, Obstacle],
    ) -> None:
        self.net, self.shapes, self.uncuttable = net, shapes, uncuttable
        self.spaces = Spaces()
        self.readers: dict[str, Reader] = {}
        self.writers: dict[str, int] = {}
        self.per_unit: dict[str, int] = {}
        self.grouped: dict[str, tuple[int, int]] = {}
        self.pins: list[Pin] = []
        self.open: set[int] = set()
        self.constant_outputs = False
        self._values: dict[fx.Node, Value] = {}
        self._aliases: dict[fx.Node, fx.Node] = {}
        self._ahead = _with_weights_ahead(graph, net)
        for node in graph.nodes:
            self._visit(node)

    def _visit(self, node: fx.Node) -> None:
        if node.op == "output":
            outputs = [self._values.get(source) for source in node.all_input_nodes]
            self.constant_outputs = bool(outputs) and all(
                value is not None and not bool(value.constant.isnan().any()) for value in outputs
            )
        value = self._value(node) if node.op.startswith("call") else None
        if value is not None:
            value = self._checked(node, value)
        if value is not None:
            self._values[node] = value
        elif not ops.reads_only_batch_size(node):
            self._pin(node)

    def _value(self, node: fx.Node) -> Value | None:
        module = self.net.get_submodule(str(node.target)) if node.op == "call_module" else None
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        if source is None or node.target in self.uncuttable:
            return None
        if ops.works_in_place(node, module) and not self._alone(source):
            return None
        if is_depthwise(module):
            return self._depthwise(node, str(node.target), cast(nn.Module, module))
        if module is not None and (is_layer(module) or isinstance(module, nn.Embedding)):
            return self._layer(node, str(node.target), module)
        if node.target in ops.BINARY:
            return self._binary(node, ops.BINARY[node.target])
        value = self._values.get(source)
        if value is None or any(isinstance(arg, fx.Node) for arg in node.kwargs.values()):
            return None
        if module is not None:
            return self._module(node, str(node.target), module, value)
        return self._function(node, value)

    def _module(self, node: fx.Node, name: str, module: nn.Module, value: Value) -> Value | None:
        if isinstance(module, ops.POINTWISE_MODULES):
            return replace(value, constant=mapped(module, value.constant))
        if isinstance(module, ops.SAME_MODULES):
            return self._alias(node, value)
        if isinstance(module, ops.POOL_MODULES) and not ops.returns_indices(module):
            return self._pooled(value, only_zero=ops.pads_by_zeros(module))
        if isinstance(module, ops.PER_UNIT_MODULES):
            return self._per_unit(name, module, value)
        if isinstance(module, nn.GroupNorm) and value.one_each and module.num_channels == len(value.constant):
            self.grouped[name] = value.space, module.num_groups
            return replace(value, constant=varying(len(value.constant)))
        ends = ops.flattening(node, module)
        return self._flat(node, value, *ends) if ends else None

    def _function(self, node: fx.Node, value: Value) -> Value | None:
        target = cast(Any, node.target)
        if any(isinstance(arg, fx.Node) for arg in node.args[1:]):
            ends = ops.flattening(node, None)
            return self._flat(node, value, *ends) if ends else None
        if target in ops.POINTWISE_FUNCTIONS or (node.op == "call_method" and target in ops.POINTWISE_METHODS):
            function = getattr(torch, target) if isinstance(target, str) else target
            return replace(value, constant=mapped(lambda c: function(c, *node.args[1:], **node.kwargs), value.constant))
        if target in ops.SAME_FUNCTIONS or (node.op == "call_method" and target in ops.SAME_METHODS):
            return self._alias(node, value) if not node.kwargs.get("training", False) else None
        if target in ops.POOL_FUNCTIONS:
            return self._pooled(value, only_zero=ops.may_pad_by_zeros(node))
        if ends := ops.flattening(node, None):
            return self._flat(node, value, *ends)
        averaged = ops.averaged_dims(node, value.rank) if value.rank and value.axis == "channel" else None
        if averaged and value.block == 1 and not {0, 1} & set(averaged[0]):
            dims, keep = averaged
            return ranked(value, cast(int, value.rank) - (0 if keep else len(dims)))
        return None

    def _layer(self, node: fx.Node, name: str, module: nn.Module) -> Value | None:
        if len(node.args) != 1 or node.kwargs:
            return None
        if isinstance(module, nn.Embedding):
            table = module.weight.detach()
            space = self.writers[name] = self.spaces.new(table.shape[1])
            return Value(space, "feature", 1, None, torch.where((table == 0).all(0), 0.0, varying(table.shape[1])))
        inputs, outputs = fan(module)
        source = cast(fx.Node, node.args[0])
        value = self._fitting(self._values.get(source), module, inputs)
        if value is None:
            self._pin(node)
            value = Value(self._new_open(inputs), "feature", 1, None, varying(inputs))
        block = cast(int, value.block)
        weight = kernels(module).unflatten(1, (-1, block)).flatten(2)
        known = passes_on(module, value.constant)
        offset = weight.sum(-1) * torch.where(known, value.constant, 0.0)
        reads = (weight != 0).any(-1)
        self.readers[name] = Reader(name, value.space, block, reads, value.constant, known, offset)
        constant = torch.where((reads & ~known).any(1), torch.nan, bias_of(module, outputs) + offset.sum(1))
        space = self.writers[name] = self.spaces.new(outputs)
        if isinstance(module, nn.Linear):
            return Value(space, "feature", 1, value.rank, constant)
        return Value(space, "channel", 1, cast(Tensor, module.weight).ndim, constant)

    def _depthwise(self, node: fx.Node, name: str, module: nn.Module) -> Value | None:
        """The same units: each is convolved by itself, and constant after if it was before, or its kernel is zero."""
        inputs, _ = fan(module)
        value = self._fitting(self._values.get(cast(fx.Node, node.args[0])), module, inputs)
        if value is None or len(node.args) != 1 or node.kwargs:
            return None
        self.per_unit[name] = value.space
        weight = cast(Tensor, module.weight).detach().double().flatten(1)
        known = passes_on(module, value.constant)
        through = weight.sum(1) * torch.where(known, value.constant, 0.0)
        known |= (weight == 0).all(1)
        return replace(value, constant=torch.where(known, bias_of(module, inputs) + through, torch.nan))

    def _fitting(self, value: Value | None, module: nn.Module, inputs: int) -> Value | None:
        """The value as this layer reads it, if its units are the layer's inputs."""
        if value is None:
            return None
        units = len(value.constant)
        if isinstance(module, nn.Linear):
            block = inputs // units if value.block is None else value.block
            return replace(value, block=block) if value.units_last and units * block == inputs else None
        fits = value.axis == "channel" and value.rank == cast(Tensor, module.weight).ndim
        return value if fits and value.block == 1 and units == inputs else None

    def _binary(self, node: fx.Node, function: Callable[..., Tensor]) -> Value | None:
        if node.kwargs or len(node.args) != 2:
            return None
        one, other = (self._values.get(arg) if isinstance(arg, fx.Node) else arg for arg in node.args)
        if isinstance(one, Value) and isinstance(other, int | float):
            return replace(one, constant=mapped(lambda c: function(c, other), one.constant))
        if not isinstance(one, Value) or not isinstance(other, Value):
            return None
        alike = (one.axis, one.block) == (other.axis, other.block) and len(one.constant) == len(other.constant)
        if not alike or (one.axis == "channel" and one.rank != other.rank):
            return None
        self.spaces.join(one.space, other.space)
        rank = one.rank if one.rank == other.rank else None
        return replace(one, rank=rank, constant=mapped(function, one.constant, other.constant))

    def _pooled(self, value: Value, *, only_zero: bool) -> Value | None:
        if value.axis != "channel" or value.block != 1 or value.rank == 2:
            return None
        kept = (value.constant == 0) if only_zero else ~value.constant.isnan()
        return replace(value, constant=torch.where(kept, value.constant, torch.nan))

    def _per_unit(self, name: str, module: nn.Module, value: Value) -> Value | None:
        channels, function = ops.per_unit(module)
        shared = isinstance(module, nn.PReLU) and channels == 1
        if not shared:
            if not value.one_each or channels != len(value.constant):
                return None
            self.per_unit[name] = value.space
        return replace(value, constant=mapped(function, value.constant))

    def _flat(self, node: fx.Node, value: Value, start: int, end: int) -> Value | None:
        last = end == -1 or (value.rank is not None and end == value.rank - 1)
        if value.block != 1 or not last or start < 1:
            return None
        if value.rank == 2 or (value.axis == "feature" and value.rank is None and start == 1):
            return self._alias(node, replace(value, rank=2))
        if value.axis != "channel":
            return None
        if start > 1:
            return self._alias(node, replace(value, rank=start + 1))
        return self._alias(node, replace(value, axis="feature", block=None, rank=2))

    def _checked(self, node: fx.Node, value: Value) -> Value | None:
        """With the shape that an example has there, if one was given; None where it has other dimensions."""
        shape = self.shapes.get(node)
        if shape is None:
            return value
        length, units = shape[1 if value.axis == "channel" else -1], len(value.constant)
        if length % units or value.block not in (None, length // units):
            return None
        return ranked(replace(value, block=length // units), len(shape))

    def _alias(self, node: fx.Node, value: Value) -> Value:
        self._aliases[node] = node.all_input_nodes[0]
        return value

    def _alone(self, node: fx.Node) -> bool:
        """Whether nobody else reads the tensor, under this name or another."""
        return len(node.users) == 1 and (node not in self._aliases or self._alone(self._aliases[node]))

    def _new_open(self, size: int) -> int:
        space = self.spaces.new(size)
        self.open.add(space)
        return space

    def _pin(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if value := self._values.get(source):
                refused = node.op != "output" and node in self._ahead
                self.pins.append(Pin(value.space, self._named(node), refused, ~value.constant.isnan()))

    def _named(self, node: fx.Node) -> str:
        """An operation for messages, with what would help."""
        if node.op == "call_module":
            return f"{node.target!r} ({type(self.net.get_submodule(str(node.target))).__name__})"
        if node.target in ("view", "reshape", torch.reshape):
            return f"{node.name!r} (whose sizes are written out, where flatten(1) would follow the units)"
        return repr(node.name)


def _with_weights_ahead(graph: fx.Graph, net: nn.Module) -> set[fx.Node]:
    """Operations whose results reach a layer with parameters, or are one."""
    ahead: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        own = node.op == "call_module" and any(True for _ in net.get_submodule(str(node.target)).parameters())
        if own or any(user in ahead for user in node.users):
            ahead.add(node)
    return ahead
