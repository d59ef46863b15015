"""How often each layer's weight is used in one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from bayesrule.nn.untouched import untouched
from bayesrule.symbolic import Tracer

FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.Transformer)
"""Modules that may read their children's weights instead of calling them."""


class _Tracer(Tracer):
    """Stops at torch's own layers, and at modules without children."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or not any(True for _ in m.children())


class _CountReads(TorchFunctionMode):
    """Counts the operations that a parameter goes into; to ask for its shape is not one."""

    def __init__(self, names: dict[Tensor, str]) -> None:
        super().__init__()
        self.names, self.uses = names, Counter[str]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, nn.Parameter)]
            self.uses.update(self.names[parameter] for parameter in read if parameter in self.names)
        return result


def count_uses(net: nn.Module, example: Any = None) -> Counter[str] | None:
    """Uses of modules (by name) and of parameters (by theirs): of a layer's weight there are as many as of both.

    Counted in a pass over the example, or without one in a symbolic trace; None where the network has a path that
    depends on its input's values, which no trace can follow.
    """
    if not any(True for _ in net.children()):
        return Counter({"": 1})
    with untouched(net):
        if example is not None:
            return _count_reads(net, example if isinstance(example, tuple) else (example,))
        try:
            graph = _Tracer().trace(net)
        except Exception:  # a trace runs the network's own code, which may refuse a proxy in any way
            return None
    return Counter(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr"))


def _count_reads(net: nn.Module, inputs: tuple[Any, ...]) -> Counter[str]:
    with torch.no_grad(), _CountReads({parameter: name for name, parameter in net.named_parameters()}) as reads:
        net(*inputs)
    return reads.uses


def inside_fused(name: str, net: nn.Module) -> bool:
    """Whether a module lies inside a fused one, which may never call it."""
    parts = name.split(".")
    return any(isinstance(net.get_submodule(".".join(parts[:depth])), FUSED) for depth in range(len(parts)))
