"""What operations between layers do to units: most treat every unit alike and apart from the others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd, _AvgPoolNd, _MaxPoolNd

POINTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Hardtanh,
    nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Softsign, nn.Tanhshrink, nn.Hardshrink, nn.Softshrink,
    nn.Threshold, nn.Tanh, nn.Sigmoid,
)  # fmt: skip
SAME_MODULES = (nn.Identity, _DropoutNd)
"""Which do nothing in evaluation."""
POOL_MODULES = (_MaxPoolNd, _AvgPoolNd, _AdaptiveMaxPoolNd, _AdaptiveAvgPoolNd, nn.Upsample)
PER_UNIT_MODULES = (_BatchNorm, _InstanceNorm, nn.PReLU)
"""Which keep numbers for every channel."""

_ACTIVATIONS = (
    "relu", "relu6", "elu", "selu", "celu", "leaky_relu", "gelu", "silu", "mish", "softplus", "hardtanh", "hardswish",
    "hardsigmoid", "logsigmoid", "softsign", "tanhshrink", "threshold", "tanh", "sigmoid",
)  # fmt: skip
_FUNCTIONS = ("relu", "tanh", "sigmoid", "exp", "sin", "cos", "abs", "square", "clamp", "erf", "neg", "pow", "log1p")
POINTWISE_FUNCTIONS: frozenset[Any] = frozenset(
    [getattr(F, name) for name in _ACTIVATIONS] + [getattr(torch, name) for name in _FUNCTIONS] + [operator.neg]
)
POINTWISE_METHODS = frozenset(_FUNCTIONS)
SAME_FUNCTIONS: frozenset[Any] = frozenset([F.dropout, F.dropout1d, F.dropout2d, F.dropout3d])
SAME_METHODS = frozenset(["contiguous", "clone"])
POOL_FUNCTIONS: frozenset[Any] = frozenset(
    [
        F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d, F.adaptive_avg_pool1d,
        F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, F.adaptive_max_pool1d, F.adaptive_max_pool2d,
        F.adaptive_max_pool3d, F.interpolate,
    ]
)  # fmt: skip
BINARY: dict[Any, Callable[..., Tensor]] = {
    operator.add: torch.add, operator.iadd: torch.add, operator.sub: torch.sub, operator.isub: torch.sub,
    operator.mul: torch.mul, operator.imul: torch.mul, operator.truediv: torch.div, torch.add: torch.add,
    torch.sub: torch.sub, torch.mul: torch.mul, torch.div: torch.div, "add": torch.add, "sub": torch.sub,
    "mul": torch.mul, "div": torch.div, "add_": torch.add, "mul_": torch.mul,
}  # fmt: skip
IN_PLACE: frozenset[Any] = frozenset([operator.iadd, operator.isub, operator.imul, "add_", "mul_"])


def works_in_place(node: fx.Node, module: nn.Module | None) -> bool:
    """Whether the operation changes the tensor it is given."""
    return node.target in IN_PLACE or bool(node.kwargs.get("inplace")) or bool(getattr(module, "inplace", False))


def pads_by_zeros(module: nn.Module) -> bool:
    """Whether a pool averages zeros beyond the border."""
    if not isinstance(module, _AvgPoolNd):
        return False
    padding = cast(Any, module.padding)
    padded = any(padding) if isinstance(padding, Sequence) else bool(padding)
    return padded and bool(module.count_include_pad)


def may_pad_by_zeros(node: fx.Node) -> bool:
    """Likewise for a function: whether an average is told of any padding."""
    averages = node.target in (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
    return averages and (len(node.args) > 3 or "padding" in node.kwargs)


def returns_indices(module: nn.Module) -> bool:
    """Whether a pool returns more than a tensor."""
    return isinstance(module, _MaxPoolNd | _AdaptiveMaxPoolNd) and bool(module.return_indices)


def per_unit(module: nn.Module) -> tuple[int, Callable[[Tensor], Tensor]]:
    """For how many channels it keeps numbers, and what it makes of a constant channel, in evaluation."""
    if isinstance(module, nn.PReLU):
        weight = module.weight.detach().double()
        return module.num_parameters, lambda constant: torch.where(constant >= 0, constant, weight * constant)
    norm = cast(_BatchNorm, module)
    scale = torch.ones(()) if norm.weight is None else norm.weight.detach().double()
    shift = torch.zeros(()) if norm.bias is None else norm.bias.detach().double()
    if norm.running_mean is None or norm.running_var is None:  # less its own mean, a constant is zero
        return norm.num_features, lambda constant: 0 * constant + shift
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    return norm.num_features, lambda constant: (constant - mean) * (variance + norm.eps).rsqrt() * scale + shift


def flattening(node: fx.Node, module: nn.Module | None) -> tuple[int, int] | None:
    """First and last dimension that it makes one, if it is a flattening; a view must leave the length open."""
    if isinstance(module, nn.Flatten):
        return module.start_dim, module.end_dim
    args = list(node.args[1:])
    if node.target in (torch.flatten, "flatten"):
        ends = dict(zip(("start_dim", "end_dim"), args, strict=False)) | node.kwargs
        return cast(int, ends.get("start_dim", 0)), cast(int, ends.get("end_dim", -1))
    if node.target in ("view", "reshape", torch.reshape):
        sizes = list(args[0]) if len(args) == 1 and isinstance(args[0], Sequence) else args
        if len(sizes) == 2 and isinstance(sizes[0], fx.Node) and sizes[1] == -1 and reads_batch_size(sizes[0]):
            return 1, -1
    return None


def reads_batch_size(node: fx.Node) -> bool:
    """Whether a number in the graph is the first dimension of a tensor."""
    if node.target == "size":
        return tuple(node.args[1:]) == (0,)
    return node.target is operator.getitem and _is_shape(node.args[0]) and bool(node.args[1] == 0)


def reads_only_batch_size(node: fx.Node) -> bool:
    """Whether an operation asks a tensor for nothing but its first dimension."""
    return reads_batch_size(node) or (
        _is_shape(node) and all(user.target is operator.getitem and user.args[1] == 0 for user in node.users)
    )


def _is_shape(node: Any) -> bool:
    if not isinstance(node, fx.Node):
        return False
    return (node.target is getattr and node.args[1] == "shape") or (node.target == "size" and len(node.args) == 1)


def averaged_dims(node: fx.Node, rank: int) -> tuple[tuple[int, ...], bool] | None:
    """Over which dimensions, counted from the front, a mean is taken, and whether it keeps them."""
    if node.target not in (torch.mean, "mean"):
        return None
    given = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | node.kwargs
    dims, keep = given.get("dim"), given.get("keepdim", False)
    listed = [dims] if isinstance(dims, int) else dims
    if set(given) - {"dim", "keepdim"} or not isinstance(listed, Sequence) or not isinstance(keep, bool):
        return None
    return tuple(cast(int, dim) % rank for dim in listed), keep
