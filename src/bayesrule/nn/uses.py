"""How often each layer and parameter is used in one forward pass, read off a symbolic trace."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx, nn

FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.Transformer)
"""Modules that may read their children's weights instead of calling them."""


class _Tracer(fx.Tracer):
    """Stops at torch's own layers, and at modules without children."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or not any(True for _ in m.children())


def count_uses(net: nn.Module, example: Any = None) -> Counter[str] | None:
    """Uses of every module (by name) and parameter read directly (by its own name).

    Counted in a symbolic trace; where the network's path depends on its input, in a pass over the example, if there
    is one; otherwise None.
    """
    if not any(True for _ in net.children()):
        return Counter({"": 1})
    try:
        graph = _Tracer().trace(net)
    except Exception:  # a trace runs the network's own code, which may refuse a proxy in any way
        return None if example is None else _count_calls(net, example if isinstance(example, tuple) else (example,))
    return Counter(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr"))


def _count_calls(net: nn.Module, inputs: tuple[Any, ...]) -> Counter[str]:
    uses: Counter[str] = Counter()
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: uses.update([name]))
        for name, module in net.named_modules()
    ]
    states = {key: value.clone() for key, value in net.state_dict().items()}
    try:
        with torch.no_grad(), torch.random.fork_rng():
            net(*inputs)
    finally:
        for handle in handles:
            handle.remove()
        net.load_state_dict(states)  # running statistics of norm layers
    return uses


def inside_fused(name: str, net: nn.Module) -> bool:
    """Whether a module lies inside a fused one, which may never call it."""
    parts = name.split(".")
    return any(isinstance(net.get_submodule(".".join(parts[:depth])), FUSED) for depth in range(len(parts)))
