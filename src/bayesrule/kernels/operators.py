"""The fused computations as operators of torch: compilers and CUDA graphs see one call with known shapes.

On a GPU with Triton they run the kernels beside this file, elsewhere plain operations.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.eager import ordinary
from bayesrule.kernels.pairs import pair_products

HAS_TRITON = importlib.util.find_spec("triton") is not None
MOST_PAIRS = 16
"""The kernels take factors of rank up to 5."""


def has_kernels(x: Tensor) -> bool:
    """Whether there is a kernel for tensors where this one is."""
    return x.is_cuda and HAS_TRITON


def takes_kernel(*tensors: Tensor) -> bool:
    """Whether a kernel may stand in for plain operations on these float32 tensors; compilers may see it, too."""
    if not has_kernels(tensors[0]) or any(tensor.dtype != torch.float32 for tensor in tensors):
        return False
    if torch.compiler.is_compiling():
        return not any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors)
    return ordinary(*tensors)


def fresh_noise_seed(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A seed in the device's memory, from torch's generator: a captured graph gets a new one with every replay."""
    return torch.randint(0, 1 << 62, (1,), generator=generator, device=device)


def seeded_normals(seed: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """The standard normals that `ktied_linear_seeded` takes from a seed."""
    return torch.ops.bayesrule.seeded_normals(seed, rows, columns).to(dtype)


def ktied_linear_seeded(
    x: Tensor, weight: Tensor, fan_in_factor: Tensor, fan_out_factor: Tensor, seed: Tensor
) -> Tensor:
    """``y = x Wᵀ + √(x² S²) ∘ ε`` with ``S = U Vᵀ`` and ε from a seed, for (B, m) inputs and an (n, m) weight.

    ``x`` and the weight may be in half precision; variances are float32. The noise is not kept but made again.
    """
    pairs = [pair_products(factor, by).mT.contiguous() for factor, by in ((fan_in_factor, 1.0), (fan_out_factor, 2.0))]
    with torch.autocast(x.device.type, enabled=False):  # half precision holds neither σ² nor x²
        return torch.ops.bayesrule.ktied_linear(x.contiguous(), weight, *pairs, seed)[0]


@torch.library.custom_op(
    "bayesrule::seeded_normals", mutates_args=(), schema="(Tensor seed, SymInt rows, SymInt columns) -> Tensor"
)
def _seeded_normals(seed: Tensor, rows: int, columns: int) -> Tensor:
    if has_kernels(seed):
        from bayesrule.kernels import triton_noise

        return triton_noise.normals(seed, rows, columns)
    generator = torch.Generator(seed.device).manual_seed(int(seed))
    return torch.randn(rows, columns, generator=generator, device=seed.device)


@_seeded_normals.register_fake
def _(seed: Tensor, rows: int, columns: int) -> Tensor:
    return torch.empty(rows, columns, device=seed.device, dtype=torch.float32)


@torch.library.custom_op(
    "bayesrule::sum_log", mutates_args=(), schema="(Tensor left, Tensor right) -> (Tensor, Tensor, Tensor)"
)
def _sum_log(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``Σ log(U Vᵀ)`` of contiguous (m, k) and (n, k) factors, and its gradients in both."""
    if has_kernels(left):
        from bayesrule.kernels import triton_logs

        return triton_logs.sum_log(left, right)
    product = left @ right.mT
    inverse = product.reciprocal()
    return product.log().sum(), inverse @ right, inverse.mT @ left


@_sum_log.register_fake
def _(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return left.new_empty(()), torch.empty_like(left), torch.empty_like(right)


@torch.library.custom_op(
    "bayesrule::ktied_linear", mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor fan_in_pairs, Tensor fan_out_pairs, Tensor seed) -> (Tensor, Tensor)",
)  # fmt: skip
def _linear(
    x: Tensor, weight: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor, seed: Tensor
) -> tuple[Tensor, Tensor]:
    output = x @ weight.mT
    if has_kernels(x):
        from bayesrule.kernels import triton_noise

        return output, triton_noise.add_noise(output, x, fan_in_pairs, fan_out_pairs, seed)
    narrow = x.to(fan_in_pairs.dtype).square() @ fan_in_pairs.mT
    return output.add_(_std(narrow, fan_out_pairs) * _noise(output, seed, narrow.dtype)), narrow


def _std(narrow: Tensor, fan_out_pairs: Tensor) -> Tensor:
    return (narrow @ fan_out_pairs).clamp_min(torch.finfo(narrow.dtype).tiny).sqrt()


def _noise(output: Tensor, seed: Tensor, dtype: torch.dtype) -> Tensor:
    return _seeded_normals(seed, output.shape[0], output.shape[1]).to(dtype)


@_linear.register_fake
def _(x: Tensor, weight: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
    narrow = x.new_empty(x.shape[0], fan_in_pairs.shape[0], dtype=fan_in_pairs.dtype)
    return x.new_empty(x.shape[0], weight.shape[0]), narrow


@torch.library.custom_op(
    "bayesrule::ktied_linear_backward", mutates_args=(),
    schema="(Tensor gradient, Tensor x, Tensor weight, Tensor narrow, Tensor fan_in_pairs, Tensor fan_out_pairs, "
    "Tensor seed, bool of_x, bool of_weight) -> (Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
def _linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, narrow: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor,
    seed: Tensor, of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    input_gradient = gradient @ weight if of_x else x.new_empty(0)
    weight_gradient = gradient.mT @ x if of_weight else x.new_empty(0)
    if has_kernels(x):
        from bayesrule.kernels import triton_noise

        of_pairs = triton_noise.noise_gradients(
            gradient, x, narrow, fan_in_pairs, fan_out_pairs, seed, input_gradient if of_x else None
        )
        return input_gradient, weight_gradient, *of_pairs
    std, wide = _std(narrow, fan_out_pairs), x.to(narrow.dtype)
    scaled = gradient.to(narrow.dtype) * _noise(gradient, seed, narrow.dtype) / std
    scaled = scaled.masked_fill(narrow @ fan_out_pairs < torch.finfo(narrow.dtype).tiny, 0.0)
    of_narrow = scaled @ fan_out_pairs.mT
    if of_x:
        input_gradient += wide * (of_narrow @ fan_in_pairs)
    return input_gradient, weight_gradient, 0.5 * of_narrow.mT @ wide.square(), 0.5 * narrow.mT @ scaled


@_linear_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, weight: Tensor, narrow: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor,
    seed: Tensor, of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    of_x_like = torch.empty_like(x) if of_x else x.new_empty(0)
    of_weight_like = x.new_empty(weight.shape) if of_weight else x.new_empty(0)
    return of_x_like, of_weight_like, torch.empty_like(fan_in_pairs), torch.empty_like(fan_out_pairs)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, fan_in_pairs, fan_out_pairs, seed = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight, output[1], fan_in_pairs, fan_out_pairs, seed)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, narrow, fan_in_pairs, fan_out_pairs, seed = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return *_by_autograd(gradient, x, weight, fan_in_pairs, fan_out_pairs, seed), None
    of_x, of_weight, of_fan_in, of_fan_out = ctx.needs_input_grad[:4]
    found = torch.ops.bayesrule.ktied_linear_backward(
        gradient.contiguous(), x, weight, narrow, fan_in_pairs, fan_out_pairs, seed, of_x, of_weight
    )
    wanted = of_x, of_weight, of_fan_in, of_fan_out
    return *(value if needed else None for value, needed in zip(found, wanted, strict=True)), None


_linear.register_autograd(_backward, setup_context=_keep)


def _by_autograd(
    gradient: Tensor, x: Tensor, weight: Tensor, fan_in_pairs: Tensor, fan_out_pairs: Tensor, seed: Tensor
) -> tuple[Tensor | None, ...]:
    """The gradient as a graph of plain operations, where it is to be differentiated in its turn."""
    narrow = x.to(fan_in_pairs.dtype).square() @ fan_in_pairs.mT
    output = x @ weight.mT
    output = output + (_std(narrow, fan_out_pairs) * _noise(output, seed, narrow.dtype)).to(output.dtype)
    inputs = x, weight, fan_in_pairs, fan_out_pairs
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, gradient, create_graph=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in inputs)
