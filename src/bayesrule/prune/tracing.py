"""The graph of a network's forward pass, and the shapes in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesrule.errors import Unsupported
from bayesrule.symbolic import Tracer

WEIGHTS_REMEDY = 'Use structure="weights": it keeps every size and gives masks and a sparse export.'


def first_line(error: Exception) -> str:
    """What it says, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class _Tracer(Tracer):
    """Stops at torch's own layers, also where a subclass leaves their forward as it is.

    A module without parameters that cannot be traced is taken as one operation: there is nothing in it to cut.
    """

    def __init__(self) -> None:
        super().__init__()
        self.path = ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if super().is_leaf_module(m, module_qualified_name):
            return True
        container = isinstance(m, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        return type(m).forward.__module__.startswith("torch.nn.modules") and not container

    def follow(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer, self.path = self.path, self.path_of_module(m)
        last = next(iter(reversed(self.graph.nodes)))
        try:
            result = super().follow(m, forward, args, kwargs)
        except Exception:
            if any(True for _ in m.parameters()):
                raise  # and keep the path, which names where it happened
            for node in list(reversed(self.graph.nodes)):
                if node is last:
                    break
                self.graph.erase_node(node)
            result = self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
        self.path = outer
        return result


def trace(net: nn.Module) -> fx.Graph:
    """What the network computes, by `torch.fx`."""
    tracer = _Tracer()
    try:
        return tracer.trace(net)
    except Exception as error:  # a trace runs the network's own code, which may refuse a proxy in any way
        where = f"The module {tracer.path!r}" if tracer.path else f"The network ({type(net).__name__})"
        raise Unsupported(
            f"{where} cannot be pruned structurally: what it computes depends on values or sizes of its input, so "
            "that torch.fx cannot trace it",
            got=first_line(error),
            remedy=WEIGHTS_REMEDY,
        ) from error


class _Shapes(fx.Interpreter):
    """Remembers the shape of every tensor on the way."""

    def __init__(self, net: nn.Module, graph: fx.Graph) -> None:
        super().__init__(net, graph=graph)
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.shapes[n] = tuple(result.shape)
        return result


@torch.no_grad()
def shapes_of(net: nn.Module, graph: fx.Graph, inputs: tuple[Any, ...] | None) -> dict[fx.Node, tuple[int, ...]]:
    """The shape of every tensor in the graph, for these inputs; nothing without any."""
    if inputs is None:
        return {}
    interpreter = _Shapes(net, graph)
    try:
        interpreter.run(*inputs)
    except Exception as error:  # again the network's own code, on inputs that it takes itself
        raise Unsupported(
            "This network cannot be pruned structurally: it runs on the example, but its graph does not",
            got=first_line(error),
            remedy=WEIGHTS_REMEDY,
        ) from error
    return interpreter.shapes
