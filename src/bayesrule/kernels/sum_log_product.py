"""``Σ_ij log(U Vᵀ)_ij`` and its gradient, in one pass over row chunks: nothing of size m × n is kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.forward_mode import in_forward_mode
from bayesrule.kernels.eager import ordinary_on_cpu
from bayesrule.kernels.log_blocks import FEW_ENTRIES, sum_log_blocks
from bayesrule.kernels.log_nodes import sum_log_by_nodes
from bayesrule.kernels.operators import takes_kernel

CHUNK_ENTRIES = 1 << 19
"""Entries of ``U Vᵀ`` that exist at a time: as many as a core's cache holds."""


def sum_log_product(left: Tensor, right: Tensor) -> Tensor:
    """``Σ_ij log Σ_a left_ia right_ja`` for positive (…, m, k) and (…, n, k) factors.

    The gradient, ``(1/S) right`` and ``(1/S)ᵀ left`` with ``S = left rightᵀ``, is found in the same pass and kept as
    k(m + n) numbers. Forward-mode derivatives are those of plain operations, which make S and its tangent.
    """
    if in_forward_mode():
        return (left @ right.mT).log().sum((-2, -1))
    return _SumLogProduct.apply(left, right)[0]


def sum_log_with_gradient(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`sum_log_product` of ordinary (m, k) and (n, k) factors with its two gradients, none of them differentiable."""
    if left.is_cuda:
        return torch.ops.bayesrule.sum_log(left.contiguous(), right.contiguous())
    return sum_log_blocks(left, right, max(1, CHUNK_ENTRIES // right.shape[0]))


def sum_log_with_gradient_in_logs(
    left_logs: Tensor, right_logs: Tensor, left: Tensor, right: Tensor
) -> tuple[float, Tensor, Tensor]:
    """`sum_log_with_gradient` on a CPU, with the gradients in the factors' logarithms, which are given too."""
    fan_in, fan_out, rank = left.shape[0], right.shape[0], left.shape[1]
    if rank == 1:
        total = fan_out * left_logs.sum().item() + fan_in * right_logs.sum().item()
        return total, torch.full_like(left_logs, fan_out), torch.full_like(right_logs, fan_in)
    if rank == 2 and left_logs.is_cpu and fan_in * fan_out >= FEW_ENTRIES:
        found = sum_log_by_nodes(left_logs, right_logs)
        if found is not None:
            return found
    summed, of_left, of_right = sum_log_with_gradient(left, right)
    return summed.item(), of_left.mul_(left), of_right.mul_(right)


def has_fused_logs(left: Tensor, right: Tensor) -> bool:
    """Whether `sum_log_with_gradient` takes these factors."""
    if left.ndim != 2 or right.ndim != 2:
        return False
    return ordinary_on_cpu(left, right) or takes_kernel(left, right)


def _chunk_rows(left: Tensor, right: Tensor) -> int:
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]).numel()
    return max(1, CHUNK_ENTRIES // max(1, batch * right.shape[-2]))


def _multiply_into(product: Tensor, rows: Tensor, right: Tensor) -> None:
    """``rows rightᵀ``, written over what is there; compilers and `torch.vmap` know only how to copy it there."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(product):
        product.copy_(rows @ right.mT)
    else:
        torch.matmul(rows, right.mT, out=product)


class _SumLogProduct(torch.autograd.Function):
    """Gives the sum and its gradient; the gradient is an output so that it can be differentiated in its turn."""

    generate_vmap_rule = True

    @staticmethod
    def forward(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if has_fused_logs(left, right):
            return sum_log_with_gradient(left, right)
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        total, right_gradient = left.new_zeros(batch), right.new_zeros(*batch, *right.shape[-2:])
        left_gradients: list[Tensor] = []
        buffers = None
        for rows in left.split(_chunk_rows(left, right), dim=-2):
            # The same two buffers serve every chunk: blocks of their size, freed in between small ones that stay,
            # would break up the heap until it is as large as the whole matrix.
            if buffers is None:
                product = rows @ right.mT
                buffers = product, product.reciprocal()
            product, inverse = (buffer[..., : rows.shape[-2], :] for buffer in buffers)
            if left_gradients:
                _multiply_into(product, rows, right)
                inverse.copy_(product).reciprocal_()
            left_gradients.append(inverse @ right)
            right_gradient = right_gradient + inverse.mT @ rows
            total = total + product.log_().sum((-2, -1))
        return total, torch.cat(left_gradients, dim=-2), right_gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, total: Tensor | None, *of_gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        left, right, *gradients = ctx.saved_tensors
        terms: list[tuple[Tensor, ...]] = []
        if total is not None:
            terms.append(tuple(total[..., None, None] * gradient for gradient in gradients))
        if any(cotangent is not None for cotangent in of_gradients):
            terms.append(_second_order(left, right, *of_gradients))
        if not terms:
            return None, None
        left_terms, right_terms = zip(*terms, strict=True)
        return sum(left_terms).sum_to_size(left.shape), sum(right_terms).sum_to_size(right.shape)


def _second_order(left: Tensor, right: Tensor, p: Tensor | None, q: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gradients of ``⟨P, (1/S) right⟩ + ⟨Q, (1/S)ᵀ left⟩``, in the same chunks.

    With ``C = P rightᵀ + left Qᵀ`` they are ``(1/S) Q − (C/S²) right`` and ``(1/S)ᵀ P − (C/S²)ᵀ left``.
    """
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    p = left.new_zeros(*batch, *left.shape[-2:]) if p is None else p
    q = right.new_zeros(*batch, *right.shape[-2:]) if q is None else q
    step = _chunk_rows(left, right)
    left_gradients, right_gradient = [], torch.zeros_like(q)
    for rows, p_rows in zip(left.split(step, dim=-2), p.split(step, dim=-2), strict=True):
        inverse = (rows @ right.mT).reciprocal()
        curvature = inverse.square() * (p_rows @ right.mT + rows @ q.mT)
        left_gradients.append(inverse @ q - curvature @ right)
        right_gradient = right_gradient + inverse.mT @ p_rows - curvature.mT @ rows
    return torch.cat(left_gradients, dim=-2), right_gradient
