"""KLs against a normal prior whose scale is one number, each as one node with its gradient by hand."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.sum_log_product import has_fused_logs, sum_log_product, sum_log_with_gradient


def diagonal_divergence(mean: Tensor, std: Tensor, centre: float, precision: float) -> Tensor:
    """``Σ ½[τ(σ² + (μ − m₀)²) − 1 − log τ] − log σ`` for the precision τ of the prior."""
    return _DiagonalDivergence.apply(mean, std, centre, precision)


def has_ktied_divergence(mean: Tensor, fan_in_factor: Tensor, fan_out_factor: Tensor) -> bool:
    """Whether there is fused code for these; compilers fuse the general form by themselves."""
    alike = mean.ndim == 2 and mean.dtype == fan_in_factor.dtype and not torch.compiler.is_compiling()
    return alike and has_fused_logs(fan_in_factor, fan_out_factor)


def ktied_divergence(
    fan_in_factor: Tensor, fan_out_factor: Tensor, precision: float, tapped: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """``Σ ½[τ S² − 1 − log τ] − log S`` with ``S = U Vᵀ``: the KL but for the mean's part, ``½ τ Σ (mean − m₀)²``.

    Args:
        fan_in_factor: U.
        fan_out_factor: V.
        precision: τ, of the prior.
        tapped: The mean, and the zero that `MeanTap.take` gave: then the mean's part is added too, for ``m₀ = 0``.
    """
    mean, zero = (None, None) if tapped is None else (tapped[0].detach(), tapped[1])
    return _KTiedDivergence.apply(fan_in_factor, fan_out_factor, zero, mean, precision)


def _constant(entries: int, precision: float) -> float:
    return -0.5 * entries * (1 + math.log(precision))


class _DiagonalDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor, centre: float, precision: float) -> Tensor:
        ctx.centre, ctx.precision = centre, precision
        ctx.save_for_backward(mean, std)
        squares = _sum_squares(std) + _sum_squares(mean - centre if centre else mean)
        return squares.mul_(0.5 * precision).sub_(std.log().sum()).add_(_constant(mean.numel(), precision))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mean, std = ctx.saved_tensors
        scale = gradient * ctx.precision
        centred = mean - ctx.centre if ctx.centre else mean
        of_mean = scale * centred if ctx.needs_input_grad[0] else None
        return of_mean, scale * std - gradient / std, None, None


class _KTiedDivergence(torch.autograd.Function):
    """``Σ S² = ⟨UᵀU, VᵀV⟩``, whose gradients are ``2 U VᵀV`` and ``2 V UᵀU``."""

    @staticmethod
    def forward(
        ctx: Any,
        fan_in_factor: Tensor,
        fan_out_factor: Tensor,
        zero: Tensor | None,
        mean: Tensor | None,
        precision: float,
    ) -> Tensor:
        ctx.precision = precision
        factors = fan_in_factor, fan_out_factor
        logs, *gradients = sum_log_with_gradient(*factors)
        grams = [factor.mT @ factor for factor in factors]
        ctx.save_for_backward(*factors, *gradients, *grams)
        squares = torch.dot(grams[0].view(-1), grams[1].view(-1))
        if mean is not None:
            squares.add_(_sum_squares(mean))
        constant = _constant(fan_in_factor.shape[0] * fan_out_factor.shape[0], precision)
        return squares.mul_(0.5 * precision).sub_(logs).add_(constant)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        fan_in_factor, fan_out_factor, of_fan_in, of_fan_out, fan_in_gram, fan_out_gram = ctx.saved_tensors
        of_zero = gradient * ctx.precision if ctx.needs_input_grad[2] else None
        if torch.is_grad_enabled():
            factors = _by_autograd(gradient, fan_in_factor, fan_out_factor, ctx.precision)
        else:
            factors = (
                torch.addmm(of_fan_in, fan_in_factor, fan_out_gram, beta=-1, alpha=ctx.precision).mul_(gradient),
                torch.addmm(of_fan_out, fan_out_factor, fan_in_gram, beta=-1, alpha=ctx.precision).mul_(gradient),
            )
        return *factors, of_zero, None, None


def _by_autograd(
    gradient: Tensor, fan_in_factor: Tensor, fan_out_factor: Tensor, precision: float
) -> tuple[Tensor | None, ...]:
    """The gradient as a graph of plain operations, where it is to be differentiated in its turn."""
    factors = fan_in_factor, fan_out_factor
    grams = [factor.mT @ factor for factor in factors]
    value = 0.5 * precision * (grams[0] * grams[1]).sum() - sum_log_product(*factors)
    wanted = [factor for factor in factors if factor.requires_grad]
    found = iter(torch.autograd.grad(value, wanted, gradient, create_graph=True))
    return tuple(next(found) if factor.requires_grad else None for factor in factors)


def _sum_squares(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x).square_()
