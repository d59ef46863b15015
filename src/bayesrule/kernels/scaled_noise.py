"""Local noise of a given variance as an operator of torch, from a seed: nothing random is kept for its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.operators import has_kernels, seeded_normals
from bayesrule.kernels.seeded import seed_of
from bayesrule.random import NoiseSource


def add_scaled_noise(y: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    """``y + √v ∘ ε``, with the standard normals ε of a seed, in the precision of y.

    The square root's gradient at ``v = 0`` is zero, as everywhere here.

    Args:
        y: (B, n), which may be in half precision.
        variance: In bfloat16, float32 or more, (B, n), or (B, 1) for one of each row.
        seed: As of `fresh_noise_seed`.
    """
    return torch.ops.bayesrule.scaled_noise(y, variance.contiguous(), seed)


def scaled_normals(variance: Tensor, columns: int, dtype: torch.dtype, noise: NoiseSource) -> Tensor:
    """``√v ∘ ε`` on a GPU, for the variance of every row and so many columns; ε from a seed."""
    start = torch.zeros(1, 1, dtype=dtype, device=variance.device).expand(len(variance), columns)
    return add_scaled_noise(start, variance, seed_of(noise, variance.device))


@torch.library.custom_op(
    "bayesrule::scaled_noise", mutates_args=(), schema="(Tensor y, Tensor variance, Tensor seed) -> Tensor"
)
def _scaled_noise(y: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    if has_kernels(y):
        from bayesrule.kernels import triton_scaled_noise

        return triton_scaled_noise.add_noise(y, variance, seed)
    std = variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
    return (y + std * seeded_normals(seed, y.shape[0], y.shape[1], variance.dtype)).to(y.dtype)


@_scaled_noise.register_fake
def _(y: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    return y.new_empty(y.shape)


@torch.library.custom_op(
    "bayesrule::scaled_noise_backward", mutates_args=(),
    schema="(Tensor gradient, Tensor variance, Tensor seed) -> Tensor",
)  # fmt: skip
def _variance_gradient(gradient: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    if has_kernels(gradient):
        from bayesrule.kernels import triton_scaled_noise

        return triton_scaled_noise.variance_gradient(gradient, variance, seed)
    return _plain_variance_gradient(gradient, variance, seed)


@_variance_gradient.register_fake
def _(gradient: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    return variance.new_empty(variance.shape)


def _plain_variance_gradient(gradient: Tensor, variance: Tensor, seed: Tensor) -> Tensor:
    """``½ g ∘ ε / √v``, differentiable in its turn."""
    tiny = torch.finfo(variance.dtype).tiny
    scaled = gradient.to(variance.dtype) * seeded_normals(seed, gradient.shape[0], gradient.shape[1], variance.dtype)
    of_std = scaled.sum(1, keepdim=True) if variance.shape[1] < gradient.shape[1] else scaled
    return (0.5 * of_std * variance.clamp_min(tiny).rsqrt()).masked_fill(variance < tiny, 0.0)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[1:])


def _backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
    if gradient is None or not ctx.needs_input_grad[1]:
        return gradient, None, None
    again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    slope = _plain_variance_gradient if again else torch.ops.bayesrule.scaled_noise_backward
    return gradient, slope(gradient, *ctx.saved_tensors), None


_scaled_noise.register_autograd(_backward, setup_context=_keep)
