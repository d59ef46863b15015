"""The examples a model is fitted to: inputs and targets that fit together."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch

Inputs = Float[Tensor, "examples dim"]
Targets = Shaped[Tensor, " examples"]


def paired(x: Inputs, y: Targets) -> tuple[Inputs, Float[Tensor, " examples"]]:
    """Both, the targets in the type and on the device of the inputs; refused where they do not fit together."""
    check_inputs("x", x)
    check_vector("y", y)
    if len(x) != len(y):
        raise ShapeMismatch(
            "x and y must be of the same examples", got=f"{len(x)} examples in x, {len(y)} targets in y",
            remedy="Give one target for each row of x.",
        )  # fmt: skip
    return x, y.to(x)


def check_vector(name: str, y: Targets) -> None:
    """Refuse what is not one number for each example."""
    _check_tensor(name, y)
    if y.ndim != 1:
        raise ShapeMismatch(
            f"{name} must have one number for each example", got=f"a tensor of shape {tuple(y.shape)}",
            remedy=f"Make a column a vector: {name}.squeeze(-1).",
        )  # fmt: skip


def check_inputs(name: str, x: Inputs) -> None:
    """Refuse what is not a matrix of finite numbers with a row for each example."""
    _check_tensor(name, x)
    if x.ndim != 2:
        raise ShapeMismatch(
            f"{name} must have a row for each example and a column for each input",
            got=f"a tensor of shape {tuple(x.shape)}", remedy=f"One input for each example: {name}.unsqueeze(-1).",
        )  # fmt: skip
    if not x.is_floating_point():
        raise InvalidArgument(f"{name} must be of a floating-point type", got=x.dtype, remedy=f"Give {name}.double().")
    if not len(x):
        raise InvalidArgument(f"{name} has no examples", got=f"a tensor of shape {tuple(x.shape)}")
    if not torch.isfinite(x).all():
        raise InvalidArgument(
            f"{name} must be finite", got=f"{int((~torch.isfinite(x)).sum())} entries that are not",
            remedy="Leave those examples out, or fill the gaps.",
        )  # fmt: skip


def _check_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise InvalidArgument(
            f"{name} must be a tensor", got=type(value).__name__, remedy=f"Give torch.from_numpy({name}) of an array."
        )
