"""Which parameters of which modules can be drawn, and how each is read as a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from bayesrule.contractions import Contraction, Conv, ConvTranspose, Embedding, Linear
from bayesrule.errors import InvalidArgument
from bayesrule.linalg import MatrixView

CONTRACTIONS: dict[type[nn.Module], Callable[[Any], Contraction]] = {
    nn.Linear: Linear.of,
    nn.Conv1d: Conv.of,
    nn.Conv2d: Conv.of,
    nn.Conv3d: Conv.of,
    nn.ConvTranspose1d: ConvTranspose.of,
    nn.ConvTranspose2d: ConvTranspose.of,
    nn.ConvTranspose3d: ConvTranspose.of,
    nn.Embedding: Embedding.of,
}
"""Layers with a contraction, and so a choice of estimators."""

METHODS = ("forward", "_conv_forward", "_output_padding")
"""What a contraction stands for."""

TENSOR_LEVEL = (nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
"""Modules whose weights are drawn as tensors."""

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def contraction_of(module: nn.Module) -> Contraction | None:
    """The module as a contraction, if it is one of torch's layers that are."""
    for kind, build in CONTRACTIONS.items():
        if isinstance(module, kind):
            return build(module)
    return None


def has_own_forward(module: nn.Module) -> bool:
    """Whether a subclass (or a patch) of one of those layers does something else with its weight."""
    kind = next(kind for kind in CONTRACTIONS if isinstance(module, kind))
    changed = any(getattr(type(module), name, None) is not getattr(kind, name, None) for name in METHODS)
    return changed or any(name in vars(module) for name in METHODS)


def is_vector(name: str, parameter: Tensor) -> bool:
    """Whether a parameter takes no matrix family: a bias, whatever its shape (attention keeps some as 1 × 1 × n)."""
    return parameter.ndim < 2 or name.startswith("bias")


def convertible(module: nn.Module) -> bool:
    """Whether the module's own weights can be drawn."""
    return reason_to_leave(module) is None and isinstance(module, (*CONTRACTIONS, *TENSOR_LEVEL))


def reason_to_leave(module: nn.Module) -> str | None:
    """Why a module of a kind that could be converted, or any other with parameters, stays a point estimate."""
    if isinstance(module, NORMS):
        return "norm layer"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "embedding with max_norm rescales its weight in place"
    if isinstance(module, nn.Embedding) and module.sparse:
        return "embedding with sparse gradients"
    if not isinstance(module, (*CONTRACTIONS, *TENSOR_LEVEL)):
        return f"{type(module).__name__} is not a layer bayesrule can convert"
    own = list(module.parameters(recurse=False))
    if not all(parameter.is_floating_point() for parameter in own):
        return "its weights are not real floating-point numbers"
    if any(parameter.numel() == 0 for parameter in own):
        return "a weight has no entries"
    return None


def view_of(module: nn.Module, parameter: Tensor) -> MatrixView:
    """The matrix view of a weight of two or more dimensions: that of the contraction, or (fan-out, fan-in)."""
    contraction = contraction_of(module)
    return contraction.view if contraction is not None else MatrixView(tuple(parameter.shape))


def refuse_lazy(net: nn.Module) -> None:
    """Lazy modules have no weights yet."""
    for name, parameter in net.named_parameters():
        if is_lazy(parameter):
            raise InvalidArgument(
                f"{name} belongs to a lazy module that has not seen an input yet", got="no shape",
                remedy="Run one batch through the network before converting it.",
            )  # fmt: skip
