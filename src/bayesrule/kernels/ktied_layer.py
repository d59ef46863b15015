"""Which code serves a k-tied dense layer: one node on a CPU, one operator on a GPU, or none."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.kernels.eager import ordinary_on_cpu, untransformed
from bayesrule.kernels.ktied_linear import ktied_linear
from bayesrule.kernels.linear_operator import Bias, BiasLaw, ktied_linear_seeded
from bayesrule.kernels.operators import MOST_PAIRS, fresh_noise_seed, has_kernels
from bayesrule.kernels.tap import StoredParameters
from bayesrule.random import FromGenerator, NoiseSource

_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def ktied_output(
    x: Tensor, mean: Tensor, stored: StoredParameters | None, logs: tuple[Tensor, Tensor], noise: NoiseSource,
    bias: BiasLaw | None = None,
) -> Tensor | None:  # fmt: skip
    """``x M + √(x² (UVᵀ)²) ∘ ε``, and a bias, by fused code; None where the general form has to serve.

    Args:
        x: (…, m) inputs.
        mean: M, fan-in × fan-out.
        stored: The parameters that it and the logarithms show, if they do.
        logs: log U and log V.
        noise: Where ε comes from. A GPU draws it from a seed, and so only in place of torch's own generators.
        bias: To be added. Only a GPU has code for that.
    """
    if mean.ndim != 2 or x.ndim < 2 or x.shape[-1] != mean.shape[-2]:
        return None
    if ordinary_on_cpu(x, mean, *logs):
        if bias is not None:
            return None
        tensors = _tensors(mean, stored, logs, mean.dtype)
        epsilon = noise((*x.shape[:-1], mean.shape[-1]), "normal", x)
        if x.ndim == 2:
            return ktied_linear(x, *tensors, epsilon)
        rows = ktied_linear(x.flatten(0, -2), *tensors, epsilon.flatten(0, -2))
    elif isinstance(noise, FromGenerator) and (dtype := _kernel_dtype(x, mean, *logs)) is not None:
        law = None if bias is None else bias()
        if bias is not None and (law is None or not _in_float32(law)):
            return None
        tensors = _tensors(mean, stored, logs, dtype)
        seed = fresh_noise_seed(x.device, noise.generator)
        rows = ktied_linear_seeded(x.flatten(0, -2).to(dtype), *tensors, seed, law)
    else:
        return None
    return rows.reshape(*x.shape[:-1], mean.shape[-1])


def _tensors(
    mean: Tensor, stored: StoredParameters | None, logs: tuple[Tensor, Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The weight, fan-out × fan-in, and the logarithms, in such a way that a KL can share their gradients."""
    tapped = None if stored is None else stored.take(dtype)
    if tapped is None:
        return mean.mT.to(dtype), *logs
    weight, fan_in_logs, fan_out_logs = tapped.tensors
    return weight, fan_in_logs, fan_out_logs


def _in_float32(bias: Bias) -> bool:
    return all(tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous()) for tensor in bias)


def _kernel_dtype(x: Tensor, mean: Tensor, *logs: Tensor) -> torch.dtype | None:
    """The precision of the layer's matrix products, where the GPU has a kernel for them."""
    rank, kind = logs[0].shape[-1], x.device.type
    if not has_kernels(x) or rank * (rank + 1) // 2 > MOST_PAIRS or logs[0].dtype != torch.float32:
        return None
    if not (torch.compiler.is_compiling() or untransformed(x, mean, *logs)):
        return None
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if dtype != mean.dtype and not torch.is_autocast_enabled(kind):
        return None
    return dtype if dtype in (torch.float32, *_SIXTEEN_BITS) else None
