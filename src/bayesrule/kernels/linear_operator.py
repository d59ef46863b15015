"""A dense layer with k-tied local noise as one operator of torch, its noise from a seed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from bayesrule.cuda_graphs import NOISE, after_seeds, beside, in_turn
from bayesrule.kernels.operators import BLOCK_ROWS, by_matrix_units, has_kernels, seeded_normals
from bayesrule.kernels.pairs import pair_rows, pair_rows_backward

Bias = tuple[Tensor, Tensor | None]
"""The mean of a bias and the logarithms of its standard deviations, None for a bias that is not random."""
BiasLaw = Callable[[], Bias | None]
"""What finds a bias, None if it cannot be given so: only asked where there is code for it."""


def ktied_linear_seeded(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, seed: Tensor, bias: Bias | None = None
) -> Tensor:
    """``y = x Wᵀ + √(x² S²) ∘ ε + b``, ``S = U Vᵀ``, from log U, log V and a seed, for (B, m) inputs, (n, m) weights.

    ``x`` and the weight may be in half precision; variances and the bias, which is drawn once for all rows, are
    float32. The noise is not kept but made again.
    """
    with torch.autocast(x.device.type, enabled=False):  # half precision holds neither σ² nor x²
        logs = fan_in_logs.contiguous(), fan_out_logs.contiguous()
        return torch.ops.bayesrule.ktied_linear(x.contiguous(), weight, *logs, *(bias or (None, None)), seed)[0]


def bias_noise(seed: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """The standard normals of the bias, in a layer for so many rows: those of the row after its last block."""
    return seeded_normals(seed, -(-rows // BLOCK_ROWS) * BLOCK_ROWS + 1, columns, dtype)[-1]


@torch.library.custom_op(
    "bayesrule::ktied_linear", mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor fan_in_logs, Tensor fan_out_logs, Tensor? bias, Tensor? bias_logs, "
    "Tensor seed) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
def _linear(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, bias: Tensor | None,
    bias_logs: Tensor | None, seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The output, the narrow columns ``x² UU``, the pairs UU and VV as rows, and the bias less its mean."""
    if has_kernels(x):
        from bayesrule.kernels import triton_noise

        with _beside_product(x) as prepared:
            after_seeds()
            fan_in, fan_out, spread = triton_noise.prepare(fan_in_logs, fan_out_logs, bias_logs, seed, x.shape[0])
            narrow = triton_noise.narrow_columns(x, fan_in)
        output = x @ weight.mT
        prepared()
        triton_noise.add_noise(output, narrow, fan_out, bias, spread, seed)
        return output, narrow, fan_in, fan_out, spread
    output = x @ weight.mT
    fan_in, fan_out = pair_rows(fan_in_logs, 1.0), pair_rows(fan_out_logs, 2.0)
    narrow = x.to(fan_in.dtype).square() @ fan_in.mT
    spread = _spread(output, bias_logs, seed, narrow)
    noise = _std(narrow, fan_out) * _noise(output, seed, narrow.dtype)
    return output.add_(_shifted(noise, bias, spread)), narrow, fan_in, fan_out, spread


def _beside_product(x: Tensor) -> AbstractContextManager[Callable[[], None]]:
    """For noise, on the processors that a product by matrix units leaves free; one in full precision needs them."""
    return beside(NOISE) if by_matrix_units(x) else in_turn()


def _std(narrow: Tensor, fan_out_pairs: Tensor) -> Tensor:
    return (narrow @ fan_out_pairs).clamp_min(torch.finfo(narrow.dtype).tiny).sqrt()


def _noise(output: Tensor, seed: Tensor, dtype: torch.dtype) -> Tensor:
    return seeded_normals(seed, output.shape[0], output.shape[1], dtype)


def _spread(output: Tensor, bias_logs: Tensor | None, seed: Tensor, like: Tensor) -> Tensor:
    if bias_logs is None:
        return like.new_empty(0)
    return bias_logs.exp() * bias_noise(seed, output.shape[0], output.shape[1], like.dtype)


def _shifted(noise: Tensor, bias: Tensor | None, spread: Tensor) -> Tensor:
    if bias is None:
        return noise
    return noise + bias + spread if spread.shape[0] else noise + bias


@_linear.register_fake
def _(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, bias: Tensor | None,
    bias_logs: Tensor | None, seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rank = fan_in_logs.shape[1]
    count = rank * (rank + 1) // 2
    output, narrow = x.new_empty(x.shape[0], weight.shape[0]), fan_in_logs.new_empty(x.shape[0], count)
    spread = fan_in_logs.new_empty(0 if bias_logs is None else weight.shape[0])
    fan_in, fan_out = (logs.new_empty(count, logs.shape[0]) for logs in (fan_in_logs, fan_out_logs))
    return output, narrow, fan_in, fan_out, spread


@torch.library.custom_op(
    "bayesrule::ktied_linear_backward", mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor? weight, Tensor narrow, Tensor fan_in_pairs, Tensor fan_out_pairs, "
    "Tensor spread, Tensor seed, SymInt rank, bool of_x, bool of_weight, bool of_bias) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
def _linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor | None, narrow: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor,
    spread: Tensor, seed: Tensor, rank: int, of_x: bool, of_weight: bool, of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients in x, the weight and the bias, empty where not wanted, and in the logarithms of the factors."""
    by_kernels = has_kernels(x)
    if by_kernels:
        from bayesrule.kernels import triton_noise_gradient

        with _beside_product(x):
            partial = triton_noise_gradient.variance_gradient(gradient, narrow, fan_out_pairs, seed, of_bias)
    input_gradient = gradient @ weight if of_x and weight is not None else x.new_empty(0)
    if by_kernels:
        with _beside_product(x) as finished:
            found = triton_noise_gradient.noise_gradients(
                partial, x, fan_in_pairs, fan_out_pairs, spread, rank, input_gradient if of_x else None, of_bias
            )
    weight_gradient = gradient.mT @ x if of_weight else x.new_empty(0)
    if by_kernels:
        finished()
        return input_gradient, weight_gradient, *found
    std, wide, slope = _std(narrow, fan_out_pairs), x.to(narrow.dtype), gradient.to(narrow.dtype)
    scaled = slope * _noise(gradient, seed, narrow.dtype) / std
    scaled = scaled.masked_fill(narrow @ fan_out_pairs < torch.finfo(narrow.dtype).tiny, 0.0)
    of_narrow = scaled @ fan_out_pairs.mT
    if of_x:
        input_gradient += wide * (of_narrow @ fan_in_pairs)
    of_logs = (
        pair_rows_backward(fan_in_pairs, of_narrow.mT @ wide.square(), rank),
        pair_rows_backward(fan_out_pairs, narrow.mT @ scaled, rank),
    )
    bias_gradient = slope.sum(0) if of_bias else narrow.new_empty(0)
    of_bias_logs = bias_gradient * spread if spread.shape[0] else narrow.new_empty(0)
    return input_gradient, weight_gradient, *of_logs, bias_gradient, of_bias_logs


@_linear_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weight: Tensor | None, narrow: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor,
    spread: Tensor, seed: Tensor, rank: int | torch.SymInt, of_x: bool, of_weight: bool, of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    of_x_like = torch.empty_like(x) if of_x else x.new_empty(0)
    of_weight_like = x.new_empty(gradient.shape[1], x.shape[1]) if of_weight else x.new_empty(0)
    of_fan_in, of_fan_out = (pairs.new_empty(pairs.shape[1], rank) for pairs in (fan_in_pairs, fan_out_pairs))
    bias_gradient = narrow.new_empty(gradient.shape[1] if of_bias else 0)
    return of_x_like, of_weight_like, of_fan_in, of_fan_out, bias_gradient, torch.empty_like(spread)


def _keep(ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    x, weight, *rest = inputs
    ctx.save_for_backward(x, weight if ctx.needs_input_grad[0] else None, *rest, *output[1:])


def _backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 7
    saved = ctx.saved_tensors  # read once, as activation checkpointing wants it
    inputs, kept = saved[:7], saved[7:]
    x, weight, fan_in_logs, *_, seed = inputs
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return _by_autograd(gradient, ctx.needs_input_grad[1], *inputs)
    of_x, of_weight, of_fan_in, of_fan_out, of_bias, of_bias_logs, _ = ctx.needs_input_grad
    found = torch.ops.bayesrule.ktied_linear_backward(
        gradient.contiguous(), x, weight, *kept, seed, fan_in_logs.shape[1], of_x, of_weight, of_bias or of_bias_logs
    )
    wanted = of_x, of_weight, of_fan_in, of_fan_out, of_bias, of_bias_logs
    return *(value if needed else None for value, needed in zip(found, wanted, strict=True)), None


_linear.register_autograd(_backward, setup_context=_keep)


def _by_autograd(
    gradient: Tensor, of_weight: bool, x: Tensor, weight: Tensor | None, fan_in_logs: Tensor, fan_out_logs: Tensor,
    bias: Tensor | None, bias_logs: Tensor | None, seed: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradient as a graph of plain operations, where it is to be differentiated in its turn."""
    narrow = x.to(fan_in_logs.dtype).square() @ pair_rows(fan_in_logs, 1.0).mT
    noise = _std(narrow, pair_rows(fan_out_logs, 2.0)) * _noise(gradient, seed, narrow.dtype)
    noise = _shifted(noise, bias, _spread(gradient, bias_logs, seed, narrow))
    inputs = x, fan_in_logs, fan_out_logs, bias, bias_logs
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    slopes = torch.autograd.grad(noise, wanted, gradient.to(noise.dtype), create_graph=True) if wanted else ()
    found = iter(slopes)
    of_x, *of_rest = (next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs)
    if of_x is not None and weight is not None:
        of_x = of_x + gradient @ weight
    return of_x, (gradient.mT @ x if of_weight else None), *of_rest, None
