"""Scales, shapes and rates given by the caller."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch


def check_positive(name: str, value: float) -> None:
    """Refuse what is no positive, finite number."""
    if not 0 < value < math.inf:
        raise InvalidArgument(f"{name} must be positive and finite", got=value)


def positive_tensor(name: str, value: float | Tensor, *, max_ndim: int = 0) -> Tensor:
    """``value``, checked, as a new floating-point tensor of at most ``max_ndim`` dimensions."""
    if not isinstance(value, Tensor):
        check_positive(name, value)
        return torch.tensor(float(value))
    if not value.is_floating_point():
        raise InvalidArgument(f"{name} must be floating point", got=value.dtype)
    if value.ndim > max_ndim or value.numel() == 0:
        raise ShapeMismatch(f"{name} must have at most {max_ndim} dimensions, and an entry", got=tuple(value.shape))
    check_positive(f"the smallest {name}", value.min().item())
    check_positive(f"the largest {name}", value.max().item())
    return value.detach().clone()
