"""A dense layer with a drawn k-tied weight and its bias as one node: fixed costs decide how fast a small layer is."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.kernels.left_slope import taken
from bayesrule.kernels.native import Noise, normals_of
from bayesrule.kernels.native import ktied as native
from bayesrule.kernels.plain_gradients import gradients_again, to_be_differentiated
from bayesrule.kernels.tap import ParameterTap, StoredParameters

Vector = Tensor | None


class DrawnOutput(NamedTuple):
    """Of a layer, with the draws that made it, in the layouts in which the layer keeps its parameters."""

    output: Tensor
    weight: Tensor
    bias: Vector


def ktied_drawn_linear(
    x: Tensor, stored: StoredParameters, noise: Noise, bias: Vector = None, bias_logs: Vector = None,
    bias_noise: Vector = None,
) -> DrawnOutput:  # fmt: skip
    """``y = x Wᵀ + b`` for ``W = M + V Uᵀ ∘ ε``, and a bias likewise if it is random; by the compiled library.

    Args:
        x: (B, m) inputs.
        stored: M, fan-out × fan-in, log U and log V.
        noise: ε, fan-out × fan-in.
        bias: b, or its mean.
        bias_logs: The logarithms of the bias's standard deviations, if it is random.
        bias_noise: Its noise.
    """
    found = _DrawnLinear.apply(stored.tap, noise, x, *stored.for_layer(), bias, bias_logs, bias_noise)
    output, weight, *shift = found
    return DrawnOutput(output, weight, shift[0] if shift else bias)


def ktied_drawn_linear_reference(
    x: Tensor, mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor, bias: Vector = None,
    bias_logs: Vector = None, bias_noise: Vector = None,
) -> DrawnOutput:  # fmt: skip
    """`ktied_drawn_linear` in plain operations."""
    weight = mean + fan_out_logs.exp() @ fan_in_logs.exp().mT * noise
    shift = bias if bias is None or bias_logs is None or bias_noise is None else bias + bias_logs.exp() * bias_noise
    return DrawnOutput(torch.nn.functional.linear(x, weight, shift), weight, shift)


class _DrawnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tap: ParameterTap, noise: Noise, x: Tensor, mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor,
        bias: Vector, bias_logs: Vector, bias_noise: Vector,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.set_materialize_grads(False)
        weight, factors = native.draw(mean, fan_in_logs, fan_out_logs, noise)
        tap.left.expect(ctx, mean)
        ctx.seed = None if isinstance(noise, Tensor) else noise
        normals = noise if isinstance(noise, Tensor) else None
        inputs = x, mean, fan_in_logs, fan_out_logs, normals, bias, bias_logs, bias_noise
        if bias is None or bias_logs is None or bias_noise is None:
            ctx.save_for_backward(*inputs, weight, factors, None)
            return (x @ weight.mT if bias is None else torch.addmm(bias, x, weight.mT)), weight
        std = bias_logs.exp()
        shift = bias + std * bias_noise
        ctx.save_for_backward(*inputs, weight, factors, std)
        return torch.addmm(shift, x, weight.mT), weight, shift

    @staticmethod
    def backward(ctx: Any, *gradients: Vector) -> tuple[Vector, ...]:
        saved = ctx.saved_tensors  # read once, as activation checkpointing wants it
        (x, mean, fan_in_logs, fan_out_logs, normals, *bias), (weight, factors, std) = saved[:8], saved[8:]
        noise = normals if ctx.seed is None else ctx.seed
        if to_be_differentiated(*gradients):
            inputs = x, mean, fan_in_logs, fan_out_logs, normals_of(noise, tuple(mean.shape)), *bias
            slopes = *gradients, *(None,) * (3 - len(gradients))
            found = gradients_again(inputs, ktied_drawn_linear_reference, slopes)
            return None, None, *found[:4], *found[5:]
        of_output, of_weight, *of_shift = gradients
        _, _, of_x, _, of_fan_in, of_fan_out, of_bias, *_ = ctx.needs_input_grad
        bias_gradient = of_shift[0] if of_shift else None
        input_gradient = None
        if of_output is not None:
            input_gradient = of_output @ weight if of_x else None
            of_weight = _added(of_output.mT @ x, of_weight)
            bias_gradient = _added(of_output.sum(0), bias_gradient) if of_bias or std is not None else None
        left = taken(ctx)
        of_logs: tuple[Vector, Vector] = None, None
        if of_weight is not None and (of_fan_in or of_fan_out):
            of_logs = native.draw_backward(native.sizes_of(fan_in_logs, fan_out_logs), factors, of_weight, noise)
        of_bias_logs = None
        if bias_gradient is not None and std is not None:  # in the order of plain operations, to the last digit
            of_bias_logs = (bias_gradient * bias[2]).mul_(std)
        if left:
            of_weight = mean * left if of_weight is None else of_weight.add_(mean, alpha=left)
        return None, None, input_gradient, of_weight, *of_logs, bias_gradient, of_bias_logs, None


def _added(one: Tensor, other: Vector) -> Tensor:
    return one if other is None else one.add_(other)
