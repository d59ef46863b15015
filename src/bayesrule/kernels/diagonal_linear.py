"""A dense layer with mean-field local noise as one node: forward and gradient by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.plain_gradients import gradients_again, to_be_differentiated


def diagonal_linear(x: Tensor, weight: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """``y = x Wᵀ + √(x² σ²) ∘ ε`` for (B, m) inputs, an (n, m) weight and (m, n) standard deviations, as logarithms.

    Of the output's size only ``ε/√(x² σ²)`` is kept for the gradient, of the weight's only ``σ²``.
    """
    return _DiagonalLinear.apply(x, weight, log_std, noise)


def diagonal_linear_reference(x: Tensor, weight: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """`diagonal_linear` in plain operations."""
    variance = x.square() @ log_std.exp().square()
    return x @ weight.mT + variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt() * noise


class _DiagonalLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        variances = log_std.exp().square_()
        output = x @ weight.mT
        std = x.square() @ variances
        tiny = torch.finfo(x.dtype).tiny
        dead = std < tiny if bool(std.amin() < tiny) else None  # no variance at all, as for an input of zeros
        std.clamp_min_(tiny).sqrt_()
        output.addcmul_(std, noise)
        ratio = torch.div(noise, std, out=std)
        if dead is not None:
            ratio.masked_fill_(dead, 0.0)
        ctx.save_for_backward(x, weight, log_std, variances, ratio)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, log_std, variances, ratio = ctx.saved_tensors
        if to_be_differentiated(gradient):
            noise = ratio * (x.detach().square() @ variances).sqrt()
            inputs = x, weight, log_std, noise
            return gradients_again(inputs, diagonal_linear_reference, [gradient])
        of_x, of_weight, of_log_std, _ = ctx.needs_input_grad
        scaled = gradient * ratio  # twice the gradient in the variance; what follows has a half, and a two
        input_gradient = None
        if of_x:
            input_gradient = gradient @ weight
            input_gradient.addcmul_(x, scaled @ variances.mT)
        return (
            input_gradient,
            gradient.mT @ x if of_weight else None,
            (x.square().mT @ scaled).mul_(variances) if of_log_std else None,
            None,
        )
