"""``Σ_ij log(U Vᵀ)_ij`` and its gradient, in one pass over row chunks: nothing of size m × n is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ENTRIES = 1 << 20
"""Entries of ``U Vᵀ`` that exist at a time."""


def sum_log_product(left: Tensor, right: Tensor) -> Tensor:
    """``Σ_ij log Σ_a left_ia right_ja`` for positive (…, m, k) and (…, n, k) factors.

    The gradient, ``(1/S) right`` and ``(1/S)ᵀ left``, is found in the same pass and kept as k(m + n) numbers.
    """
    return _SumLogProduct.apply(left, right)[0]


def _chunk_rows(left: Tensor, right: Tensor) -> int:
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]).numel()
    return max(1, CHUNK_ENTRIES // max(1, batch * right.shape[-2]))


class _SumLogProduct(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        chunks = left.split(_chunk_rows(left, right), dim=-2)
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        total, right_gradient = left.new_zeros(batch), right.new_zeros(*batch, *right.shape[-2:])
        left_gradients = []
        for rows in chunks:
            product = rows @ right.mT
            inverse = product.reciprocal()
            total = total + product.log_().sum((-2, -1))
            left_gradients.append(inverse @ right)
            right_gradient = right_gradient + inverse.mT @ rows
        return total, torch.cat(left_gradients, dim=-2), right_gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])
        ctx.shapes = inputs[0].shape, inputs[1].shape

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        scaled = (gradient[..., None, None] * saved for saved in ctx.saved_tensors)
        return tuple(value.sum_to_size(shape) for value, shape in zip(scaled, ctx.shapes, strict=True))
