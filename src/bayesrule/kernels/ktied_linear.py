"""A dense layer with k-tied local noise as one node: forward and gradient by hand, nothing m × n but the weight's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.again import gradients_again
from bayesrule.kernels.native import ktied as native
from bayesrule.kernels.pairs import pair_products, pair_rows, pair_rows_backward
from bayesrule.kernels.thin import outer_sum

Vector = Tensor | None


def ktied_linear(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor, bias: Vector = None,
    bias_logs: Vector = None, bias_noise: Vector = None,
) -> Tensor:  # fmt: skip
    """``y = x Wᵀ + √(x² S²) ∘ ε + b`` with ``S = U Vᵀ``, from log U and log V, for (B, m) inputs, (n, m) weights.

    ``S²`` is a sum over pairs of columns, so ``x² S² = (x² UU) VVᵀ`` with k(k+1)/2 narrow columns. For the gradient the
    narrow columns and one tensor of the output's size, ``ε/√(x² S²)``, are kept.

    Args:
        x: Inputs.
        weight: W.
        fan_in_logs: log U.
        fan_out_logs: log V.
        noise: ε, of the output's shape.
        bias: b, or its mean.
        bias_logs: The logarithms of the bias's standard deviations, if it is random.
        bias_noise: Its noise: the same for all rows.
    """
    others = fan_in_logs, fan_out_logs, noise, bias, bias_logs, bias_noise
    function = _NativeKTiedLinear if native.adds_noise(x, *others) else _KTiedLinear
    return function.apply(x, weight, *others)


def ktied_linear_reference(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor, bias: Vector = None,
    bias_logs: Vector = None, bias_noise: Vector = None,
) -> Tensor:  # fmt: skip
    """`ktied_linear` in plain operations."""
    narrow = x.square() @ pair_products(fan_in_logs.exp(), 1.0)
    variance = narrow @ pair_products(fan_out_logs.exp(), 2.0).mT
    output = x @ weight.mT + variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt() * noise
    if bias is None:
        return output
    return output + (bias if bias_logs is None or bias_noise is None else bias + bias_logs.exp() * bias_noise)


class _KTiedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor, bias: Vector,
        bias_logs: Vector, bias_noise: Vector,
    ) -> Tensor:  # fmt: skip
        spread = None if bias_logs is None or bias_noise is None else bias_logs.exp().mul_(bias_noise)
        shift = bias if bias is None or spread is None else bias + spread
        output = x @ weight.mT if shift is None else torch.addmm(shift, x, weight.mT)
        fan_in_pairs, fan_out_pairs = pair_rows(fan_in_logs, 1.0), pair_rows(fan_out_logs, 2.0)
        # Few rows times a matrix: the fastest of the forms that a product so thin can be given.
        narrow = fan_in_pairs @ x.square().mT
        variance = outer_sum(narrow, fan_out_pairs)
        tiny = torch.finfo(x.dtype).tiny
        dead = variance < tiny if variance.amin().item() < tiny else None  # none at all, as for an input of zeros
        ratio = variance.clamp_min_(tiny).rsqrt().mul_(noise)
        output.addcmul_(variance, ratio)
        if dead is not None:
            ratio.masked_fill_(dead, 0.0)
        kept = fan_in_pairs, fan_out_pairs, narrow, ratio, spread
        ctx.save_for_backward(x, weight, fan_in_logs, fan_out_logs, bias, bias_logs, bias_noise, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Vector, ...]:
        saved = ctx.saved_tensors  # read once, as activation checkpointing wants it
        x, weight, *logs, bias, bias_logs, bias_noise = saved[:7]
        fan_in_pairs, fan_out_pairs, narrow, ratio, spread = saved[7:]
        if torch.is_grad_enabled():
            noise = ratio * (narrow.mT @ fan_out_pairs).sqrt()
            inputs = x, weight, *logs, noise, bias, bias_logs, bias_noise
            return gradients_again(inputs, [ktied_linear_reference(*inputs)], [gradient])
        of_x, of_weight, *_, of_bias, of_bias_logs, _ = ctx.needs_input_grad
        rank = logs[0].shape[1]
        of_variance = gradient * ratio  # twice that, and so is what follows from it, until the logarithms
        of_narrow = fan_out_pairs @ of_variance.mT
        of_fan_out = narrow @ of_variance
        of_fan_in = of_narrow @ x.square()
        input_gradient = None
        if of_x:
            input_gradient = gradient @ weight
            input_gradient.addcmul_(x, outer_sum(of_narrow, fan_in_pairs))
        bias_gradient = gradient.sum(0) if of_bias or of_bias_logs else None
        return (
            input_gradient,
            gradient.mT @ x if of_weight else None,
            pair_rows_backward(fan_in_pairs, of_fan_in, rank),
            pair_rows_backward(fan_out_pairs, of_fan_out, rank),
            None,
            bias_gradient if of_bias else None,
            bias_gradient * spread if bias_gradient is not None and of_bias_logs else None,
            None,
        )


class _NativeKTiedLinear(torch.autograd.Function):
    """The same by the compiled library, but for the products with the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *others: Vector) -> Tensor:
        output = x @ weight.mT
        kept = native.add_noise(output, x, *others)  # type: ignore[arg-type]
        ctx.save_for_backward(x, weight, *others, kept)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Vector, ...]:
        x, weight, *others, kept = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs = x, weight, *others
            return gradients_again(inputs, [ktied_linear_reference(*inputs)], [gradient])
        of_x, of_weight, *_, of_bias, of_bias_logs, _ = ctx.needs_input_grad
        gradient = gradient.contiguous()
        input_gradient = gradient @ weight if of_x else None
        sizes = native.sizes_of(*others[:2])
        of_logs = native.noise_backward(sizes, x, others[2], gradient, kept, input_gradient, of_bias, of_bias_logs)
        weight_gradient = gradient.mT @ x if of_weight else None
        return input_gradient, weight_gradient, *of_logs[:2], None, *of_logs[2:], None
