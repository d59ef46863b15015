"""Sums that respect broadcasting and keep no temporary of the full size where none is needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule.forward_mode import in_forward_mode


def event_dims(event_dim: int) -> tuple[int, ...]:
    """The trailing dimensions of an event: ``(-event_dim, …, -1)``."""
    return tuple(range(-event_dim, 0))


def sum_of_squares(x: Tensor, event_dim: int, centre: Tensor | None = None) -> Tensor:
    """``Σ (x − centre)²`` over the event, 0 being the default centre; for the gradient nothing but ``x`` is kept."""
    if in_forward_mode():  # a dual tensor is a view, of a base without its tangent
        return (x if centre is None else x - centre).square().sum(event_dims(event_dim))
    if centre is None or centre.ndim == 0:
        x, event_dim = _in_its_own_layout(x, event_dim)
    return _SumOfSquares.apply(x, centre, event_dim)


def _in_its_own_layout(x: Tensor, event_dim: int) -> tuple[Tensor, int]:
    """The parameter that ``x`` shows in another order, if it does.

    Gradients that come through a view are added to others out of place, at the price of one more tensor of that size.
    """
    if x.ndim != event_dim or torch.compiler.is_compiling() or not x._is_view():
        return x, event_dim
    stored = x._base
    if stored is None or not stored.is_leaf or stored.numel() != x.numel() or stored.requires_grad != x.requires_grad:
        return x, event_dim
    return stored, stored.ndim


class _SumOfSquares(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, centre: Tensor | None, event_dim: int) -> Tensor:
        centred = x if centre is None else x - centre
        return torch.linalg.vector_norm(centred, dim=event_dims(event_dim)).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, centre, ctx.event_dim = inputs
        ctx.save_for_backward(x, centre)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, centre = ctx.saved_tensors
        # Unlike the norm's own, this derivative can be taken again, at zero too.
        scale = 2 * gradient.reshape(*gradient.shape, *(1,) * ctx.event_dim)
        slope = scale * x if centre is None else torch.addcmul(-scale * centre, scale, x)  # one temporary, not two
        of_centre = -slope.sum_to_size(centre.shape) if ctx.needs_input_grad[1] else None
        return slope.sum_to_size(x.shape), of_centre, None


def broadcast_sum(values: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """``Σ`` over the event of values that broadcast to it, without expanding them."""
    event_dim = len(event_shape)
    if values.ndim < event_dim:
        values = values.reshape((1,) * (event_dim - values.ndim) + tuple(values.shape))
    stored = math.prod(values.shape[values.ndim - event_dim :])
    return values.sum(event_dims(event_dim)) * (math.prod(event_shape) / stored)


def bilinear_sum(rows: Tensor, weights: Tensor, columns: Tensor) -> Tensor:
    """``Σ_ijr rows_ir · weights_ij · columns_jr`` for ``weights`` that broadcast to m × n.

    A weight that is constant over rows or columns is summed in O(m + n); the m × n matrix Σ_r rows·columns is
    never formed.
    """
    if weights.ndim < 2:
        weights = weights.reshape((1,) * (2 - weights.ndim) + tuple(weights.shape))
    m, n = weights.shape[-2:]
    if n == 1:  # constant over columns
        return ((weights * rows).sum(-2) * columns.sum(-2)).sum(-1)
    if m == 1:  # constant over rows
        return (rows.sum(-2) * (weights.mT * columns).sum(-2)).sum(-1)
    return ((weights.mT @ rows) * columns).sum((-2, -1))


def joint_norm(pieces: Sequence[Tensor], dim: int) -> Tensor:
    """``√(Σ_pieces Σ_dim y²)``, the dimension kept: the norm of pieces that were never put together.

    Its gradient at zero is zero, and takes one pass over the pieces.
    """
    return _JointNorm.apply(dim, *pieces)


class _JointNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(dim: int, *pieces: Tensor) -> Tensor:
        norms = [_norm(piece, dim) for piece in pieces]
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        norm, *pieces = ctx.saved_tensors
        scale = torch.where(norm > 0, gradient / norm, 0.0)
        return None, *(piece * scale for piece in pieces)


def _norm(x: Tensor, dim: int) -> Tensor:
    # On a CPU torch's norm is fast over neighbours in memory, and several times slower than a sum of squares elsewhere.
    if x.stride(dim) == 1 or x.is_cuda:
        return torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x.square().sum(dim, keepdim=True).sqrt()


def safe_sqrt(variance: Tensor) -> Tensor:
    """``√v`` whose gradient at ``v = 0`` is zero instead of infinite (an input row of zeros has no variance)."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
