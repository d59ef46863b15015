"""A draw from a k-tied Normal as one node: forward and gradient by hand, each entry of the weight read once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.eager import ordinary_on_cpu
from bayesrule.kernels.native import ktied as native
from bayesrule.kernels.plain_gradients import to_be_differentiated
from bayesrule.kernels.tap import StoredParameters
from bayesrule.kernels.thin import outer_sum


def ktied_weight(stored: StoredParameters, noise: Tensor) -> Tensor | None:
    """``M + U Vᵀ ∘ ε``, fan-in × fan-out, by fused code; None where the general form has to serve.

    Args:
        stored: M, fan-out × fan-in, log U and log V.
        noise: ε, fan-in × fan-out.
    """
    if noise.ndim != 2 or not ordinary_on_cpu(noise, *stored.parameters):
        return None
    tapped = stored.take()
    if tapped is not None:
        tapped.slopes.shared = True  # the drawn weight's gradient, which is the mean's too, may be somebody else's
    return _KTiedWeight.apply(*(stored.parameters if tapped is None else tapped.tensors), noise.mT).mT


class _KTiedWeight(torch.autograd.Function):
    """Everything fan-out × fan-in, as a layer keeps its weight."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Tensor) -> Tensor:
        ctx.native = native.draws(mean, fan_in_logs, fan_out_logs, noise)
        if ctx.native:
            weight, factors = native.draw(mean, fan_in_logs, fan_out_logs, noise)
            ctx.save_for_backward(fan_in_logs, fan_out_logs, noise, factors)
            return weight
        rows = fan_in_logs.mT.exp(), fan_out_logs.mT.exp()
        ctx.save_for_backward(fan_in_logs, fan_out_logs, noise, *rows)
        std = outer_sum(rows[1], rows[0])
        return torch.addcmul(mean, std, noise, out=std)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        fan_in_logs, fan_out_logs, noise, *factors = ctx.saved_tensors
        of_mean, of_fan_in, of_fan_out, _ = ctx.needs_input_grad
        mean_gradient = gradient if of_mean else None
        if not (of_fan_in or of_fan_out):
            return mean_gradient, None, None, None
        if to_be_differentiated(gradient):
            fan_in, fan_out = fan_in_logs.mT.exp(), fan_out_logs.mT.exp()
        elif ctx.native:
            sizes = native.sizes_of(fan_in_logs, fan_out_logs)
            return mean_gradient, *native.draw_backward(sizes, factors[0], gradient, noise), None
        else:
            fan_in, fan_out = factors
        of_std = gradient * noise
        # Few rows times a matrix: the fastest of the forms that a product so thin can be given.
        slopes = ((fan_out @ of_std) * fan_in).mT, ((fan_in @ of_std.mT) * fan_out).mT
        return mean_gradient, *slopes, None
