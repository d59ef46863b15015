"""The fused computations as operators of torch: compilers and CUDA graphs see one call with known shapes.

On a GPU with Triton they run the kernels beside this file, elsewhere plain operations.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.eager import ordinary
from bayesrule.kernels.native import is_there, standard_normals

HAS_TRITON = importlib.util.find_spec("triton") is not None
MOST_PAIRS = 16
"""The kernels take factors of rank up to 5."""
BLOCK_ROWS = 64
"""Rows whose noise a kernel makes at a time."""


def has_kernels(x: Tensor) -> bool:
    """Whether there is a kernel for tensors where this one is."""
    return x.is_cuda and HAS_TRITON


def by_matrix_units(x: Tensor) -> bool:
    """Whether the precision of a layer's inputs (or torch's own setting) allows matrix units."""
    return x.dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32


def takes_kernel(*tensors: Tensor) -> bool:
    """Whether a kernel may stand in for plain operations on these float32 tensors; compilers may see it, too."""
    if not has_kernels(tensors[0]) or any(tensor.dtype != torch.float32 for tensor in tensors):
        return False
    return torch.compiler.is_compiling() or ordinary(*tensors)


def fresh_noise_seed(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A seed in the device's memory, from torch's generator: a captured graph gets a new one with every replay."""
    return torch.randint(0, 1 << 62, (1,), generator=generator, device=device)


def seeded_normals(seed: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """The standard normals that `ktied_linear_seeded` takes from a seed."""
    return torch.ops.bayesrule.seeded_normals(seed, rows, columns).to(dtype)


@torch.library.custom_op(
    "bayesrule::seeded_normals", mutates_args=(), schema="(Tensor seed, SymInt rows, SymInt columns) -> Tensor"
)
def _seeded_normals(seed: Tensor, rows: int, columns: int) -> Tensor:
    if has_kernels(seed):
        from bayesrule.kernels import triton_noise

        return triton_noise.normals(seed, rows, columns)
    if seed.device.type == "cpu" and is_there():
        return standard_normals(int(seed), (rows, columns))
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
    if has_kernels(left) and left.dtype == right.dtype == torch.float32:
        from bayesrule.kernels import triton_logs

        return triton_logs.sum_log(left, right)
    product = left @ right.mT
    inverse = product.reciprocal()
    return product.log().sum(), inverse @ right, inverse.mT @ left


@_sum_log.register_fake
def _(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return left.new_empty(()), torch.empty_like(left), torch.empty_like(right)


@_sum_log.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, int | None], left: Tensor, right: Tensor
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """One after another: a kernel is for single factors."""
    batches = (
        factor.expand(info.batch_size, *factor.shape) if dim is None else factor.movedim(dim, 0)
        for factor, dim in zip((left, right), in_dims, strict=True)
    )
    found = [_sum_log(*(each.contiguous() for each in pair)) for pair in zip(*batches, strict=True)]
    return tuple(torch.stack(values) for values in zip(*found, strict=True)), (0, 0, 0)
