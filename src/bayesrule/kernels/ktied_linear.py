"""A dense layer with k-tied local noise as one node: forward and gradient by hand, nothing m × n but the weight's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.left_slope import LeftSlope, taken
from bayesrule.kernels.native import Noise, normals_of
from bayesrule.kernels.native import ktied as native
from bayesrule.kernels.pairs import pair_products, pair_rows, pair_rows_backward
from bayesrule.kernels.plain_gradients import gradients_again, to_be_differentiated
from bayesrule.kernels.thin import outer_sum

Vector = Tensor | None


def ktied_linear(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Noise, bias: Vector = None,
    bias_logs: Vector = None, bias_noise: Vector = None, left: LeftSlope | None = None,
) -> Tensor:  # fmt: skip
    """``y = x Wᵀ + √(x² S²) ∘ ε + b`` with ``S = U Vᵀ``, from log U and log V, for (B, m) inputs, (n, m) weights.

    ``S²`` is a sum over pairs of columns, so ``x² S² = (x² UU) VVᵀ`` with k(k+1)/2 narrow columns. For the gradient the
    narrow columns are kept, and one tensor of the output's size: ``ε/√(x² S²)``, or in compiled code ε, unless that is
    made from a seed.

    Args:
        x: Inputs.
        weight: W.
        fan_in_logs: log U.
        fan_out_logs: log V.
        noise: ε, of the output's shape, or a seed of it.
        bias: b, or its mean.
        bias_logs: The logarithms of the bias's standard deviations, if it is random.
        bias_noise: Its noise: the same for all rows.
        left: Where a KL leaves its part of the gradient of W, if that is a parameter itself.
    """
    of_bias = bias, bias_logs, bias_noise
    if native.adds_noise(x, fan_in_logs, fan_out_logs, noise, *of_bias):
        return _NativeKTiedLinear.apply(left, noise, x, weight, fan_in_logs, fan_out_logs, *of_bias)
    epsilon = normals_of(noise, (x.shape[0], weight.shape[0]))
    return _KTiedLinear.apply(x, weight, fan_in_logs, fan_out_logs, epsilon, *of_bias)


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
        if to_be_differentiated(gradient):
            noise = ratio * (narrow.mT @ fan_out_pairs).sqrt()
            inputs = x, weight, *logs, noise, bias, bias_logs, bias_noise
            return gradients_again(inputs, ktied_linear_reference, [gradient])
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
    def forward(
        ctx: Any, left: LeftSlope | None, noise: Noise, x: Tensor, weight: Tensor, fan_in_logs: Tensor,
        fan_out_logs: Tensor, *bias: Vector,
    ) -> Tensor:  # fmt: skip
        ctx.set_materialize_grads(False)
        output = x @ weight.mT
        kept = native.add_noise(output, x, fan_in_logs, fan_out_logs, noise, *bias)
        ctx.seed = None if isinstance(noise, Tensor) else noise
        ctx.leaves = left is not None
        if left is not None:
            left.expect(ctx, weight)
        normals = noise if isinstance(noise, Tensor) else None
        ctx.save_for_backward(x, weight, fan_in_logs, fan_out_logs, normals, *bias, kept)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Vector) -> tuple[Vector, ...]:
        x, weight, fan_in_logs, fan_out_logs, normals, *bias, kept = ctx.saved_tensors
        left = taken(ctx) if ctx.leaves else 0.0
        if gradient is None:  # only a KL has one
            return None, None, None, weight * left if left else None, *(None,) * 5
        noise = normals if ctx.seed is None else ctx.seed
        if to_be_differentiated(gradient):
            inputs = x, weight, fan_in_logs, fan_out_logs, normals_of(noise, tuple(gradient.shape)), *bias
            found = gradients_again(inputs, ktied_linear_reference, [gradient])
            return None, None, *found[:4], *found[5:]
        _, _, of_x, of_weight, *_, of_bias, of_bias_logs, _ = ctx.needs_input_grad
        gradient = gradient.contiguous()
        input_gradient = gradient @ weight if of_x else None
        sizes = native.sizes_of(fan_in_logs, fan_out_logs)
        of_rest = native.noise_backward(sizes, x, noise, gradient, kept, input_gradient, of_bias, of_bias_logs)
        weight_gradient = gradient.mT @ x if of_weight else None
        if left and weight_gradient is not None:
            weight_gradient.add_(weight, alpha=left)
        return None, None, input_gradient, weight_gradient, *of_rest, None
