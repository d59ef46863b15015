"""A dense layer with k-tied local noise as one node: forward and gradient by hand, nothing m × n but the weight's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.pairs import pair_products, pair_products_backward
from bayesrule.kernels.thin import outer_sum, thin_product


def ktied_linear(x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor) -> Tensor:
    """``y = x Wᵀ + √(x² S²) ∘ ε`` with ``S = U Vᵀ``, from log U and log V, for (B, m) inputs and an (n, m) weight.

    ``S²`` is a sum over pairs of columns, so ``x² S² = (x² UU) VVᵀ`` with k(k+1)/2 narrow columns. For the gradient the
    narrow columns and one tensor of the output's size, ``ε/√(x² S²)``, are kept.
    """
    return _KTiedLinear.apply(x, weight, fan_in_logs, fan_out_logs, noise)


def ktied_linear_reference(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor
) -> Tensor:
    """`ktied_linear` in plain operations."""
    narrow = x.square() @ pair_products(fan_in_logs.exp(), 1.0)
    variance = narrow @ pair_products(fan_out_logs.exp(), 2.0).mT
    return x @ weight.mT + variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt() * noise


class _KTiedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor
    ) -> Tensor:
        factors = fan_in_factor, fan_out_factor = fan_in_logs.exp(), fan_out_logs.exp()
        fan_in_pairs, fan_out_pairs = _pairs(fan_in_factor, fan_out_factor)
        output = x @ weight.mT
        narrow = thin_product(x.square(), fan_in_pairs)
        std = outer_sum(narrow.mT, fan_out_pairs)
        tiny = torch.finfo(x.dtype).tiny
        dead = std < tiny if bool(std.amin() < tiny) else None  # no variance at all, as for an input of zeros
        std.clamp_min_(tiny).sqrt_()
        output.addcmul_(std, noise)
        ratio = torch.div(noise, std, out=std)
        if dead is not None:
            ratio.masked_fill_(dead, 0.0)
        pairs = fan_in_pairs, fan_out_pairs
        ctx.save_for_backward(x, weight, fan_in_logs, fan_out_logs, *factors, *pairs, narrow, ratio)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *logs, fan_in_factor, fan_out_factor, fan_in_pairs, fan_out_pairs, narrow, ratio = ctx.saved_tensors
        if torch.is_grad_enabled():
            noise = ratio * (narrow @ fan_out_pairs).sqrt()
            return _by_autograd(gradient, x, weight, *logs, noise)
        of_x, of_weight = ctx.needs_input_grad[:2]
        of_variance = gradient * ratio  # twice that, until the halves below
        of_narrow = thin_product(of_variance, fan_out_pairs)
        of_fan_out = thin_product(of_variance.mT, narrow.mT).mul_(0.5)
        of_fan_in = thin_product(x.square().mT, of_narrow.mT).mul_(0.5)
        input_gradient = None
        if of_x:
            input_gradient = gradient @ weight
            input_gradient.addcmul_(x, outer_sum(of_narrow.mT, fan_in_pairs))
        return (
            input_gradient,
            gradient.mT @ x if of_weight else None,
            pair_products_backward(fan_in_factor, 1.0, of_fan_in).mul_(fan_in_factor),
            pair_products_backward(fan_out_factor, 2.0, of_fan_out).mul_(fan_out_factor),
            None,
        )


def _pairs(fan_in_factor: Tensor, fan_out_factor: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of both factors, as rows; a pair a < c stands for both its orders."""
    pairs = pair_products(fan_in_factor, 1.0), pair_products(fan_out_factor, 2.0)
    return pairs[0].mT.contiguous(), pairs[1].mT.contiguous()


def _by_autograd(gradient: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient as a graph of plain operations, where it is to be differentiated in its turn."""
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(torch.autograd.grad(ktied_linear_reference(*inputs), wanted, gradient, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)
