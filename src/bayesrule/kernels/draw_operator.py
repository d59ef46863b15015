"""A draw from a k-tied Normal as an operator of torch: compiled code on a CPU takes its entries, and noise, from C.

Left to itself, a compiler multiplies thin matrices, which takes several times as long.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.fast_noise import FastNoise
from bayesrule.kernels.native import ktied as native
from bayesrule.kernels.operators import fresh_noise_seed, seeded_normals
from bayesrule.random import NoiseSource


def drawn_by_operator(mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, source: NoiseSource) -> Tensor | None:
    """``M + V Uᵀ ∘ ε``, all fan-out × fan-in, as a layer keeps its weight; from log U and log V.

    None for other noise than of torch's own generator, and where a graph is exported or `torch.func` takes derivatives.
    """
    tensors = mean, fan_in_logs, fan_out_logs
    if torch.compiler.is_exporting() or torch._C._are_functorch_transforms_active() or mean.ndim != 2:
        return None
    if any(each.dtype != torch.float32 or each.device.type != "cpu" for each in tensors):
        return None
    if not isinstance(source, FastNoise) or source.generator is not None:
        return None
    seed = fresh_noise_seed(mean.device)
    weight: Tensor = torch.ops.bayesrule.ktied_draw(*(each.contiguous() for each in tensors), seed)[0]
    return weight


@torch.library.custom_op(
    "bayesrule::ktied_draw", mutates_args=(),
    schema="(Tensor mean, Tensor fan_in_logs, Tensor fan_out_logs, Tensor seed) -> (Tensor, Tensor)",
)  # fmt: skip
def _draw(mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    """The draw, and factors for its gradient."""
    if native.draws(mean, fan_in_logs, fan_out_logs):
        return native.draw(mean, fan_in_logs, fan_out_logs, int(seed))
    std = fan_out_logs.exp() @ fan_in_logs.exp().mT
    drawn = mean + std * seeded_normals(seed, mean.shape[0], mean.shape[1], mean.dtype)
    return drawn, _room(fan_in_logs, fan_out_logs).fill_(math.nan)


@_draw.register_fake
def _(mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(mean), _room(fan_in_logs, fan_out_logs)


@torch.library.custom_op(
    "bayesrule::ktied_draw_backward", mutates_args=(),
    schema="(Tensor gradient, Tensor fan_in_logs, Tensor fan_out_logs, Tensor seed, Tensor factors) "
    "-> (Tensor, Tensor)",
)  # fmt: skip
def _draw_backward(
    gradient: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, seed: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients in the logarithms."""
    if native.draws(gradient, fan_in_logs, fan_out_logs) and not factors[:1].isnan().any():  # or they were not made
        return native.draw_backward(native.sizes_of(fan_in_logs, fan_out_logs), factors, gradient, int(seed))
    of_std = gradient * seeded_normals(seed, gradient.shape[0], gradient.shape[1], gradient.dtype)
    fan_in, fan_out = fan_in_logs.exp(), fan_out_logs.exp()
    return (of_std.mT @ fan_out) * fan_in, (of_std @ fan_in) * fan_out


@_draw_backward.register_fake
def _(
    gradient: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, seed: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(fan_in_logs), torch.empty_like(fan_out_logs)


def _room(fan_in_logs: Tensor, fan_out_logs: Tensor) -> Tensor:
    return fan_in_logs.new_empty(native.factors_size(native.sizes_of(fan_in_logs, fan_out_logs)))


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[1:], output[1])


def _backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return None, None, None, None
    return gradient, *torch.ops.bayesrule.ktied_draw_backward(gradient.contiguous(), *ctx.saved_tensors), None


_draw.register_autograd(_backward, setup_context=_keep)
