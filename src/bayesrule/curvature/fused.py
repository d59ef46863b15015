"""Matrices of recurrent and attention modules: no tap sees them, but their gradients are as good as any."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import nn

from bayesrule.contractions import Linear
from bayesrule.curvature.layers import Layer
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Part

FUSED = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)


def fused_layers(model: nn.Module, name_if_usable: Callable[[nn.Parameter], str | None]) -> Iterator[Layer]:
    """One layer for every matrix of these modules, with its bias as a last row.

    Args:
        model: The network.
        name_if_usable: The name of a parameter in the network; None of those to leave out.
    """
    for path, module in model.named_modules():
        for keys in _matrices(module):
            found = [parameter for key in keys if (parameter := module._parameters.get(key)) is not None]
            named = [(name, parameter) for parameter in found if (name := name_if_usable(parameter)) is not None]
            if named:
                view = MatrixView((found[0].shape[0], found[0].shape[1] if found[0].ndim == 2 else 1))
                parts = (Part(name, view if each.ndim == 2 else tuple(each.shape)) for name, each in named)
                yield Layer((path,), tuple(parts), Linear(view))


def _matrices(module: nn.Module) -> list[tuple[str, ...]]:
    """Names of a matrix and its bias, of which there need not be one."""
    if isinstance(module, nn.MultiheadAttention):
        apart = [("q_proj_weight",), ("k_proj_weight",), ("v_proj_weight",), ("in_proj_bias",)]
        return apart if module.in_proj_weight is None else [("in_proj_weight", "in_proj_bias")]
    if not isinstance(module, FUSED):
        return []
    pairs = [(key, key.replace("weight", "bias", 1)) for key in module._parameters if key.startswith("weight")]
    paired = {bias for _, bias in pairs}  # a weight that is computed from others is no parameter, but has a bias
    return [*pairs, *((key,) for key in module._parameters if key.startswith("bias") and key not in paired)]
