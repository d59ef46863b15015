"""Which code serves a k-tied dense layer: one node on a CPU, one operator on a GPU, or none."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.kernels.eager import ordinary_on_cpu, untransformed
from bayesrule.kernels.ktied_linear import ktied_linear
from bayesrule.kernels.mean_tap import StoredMean
from bayesrule.kernels.operators import MOST_PAIRS, fresh_noise_seed, has_kernels, ktied_linear_seeded
from bayesrule.random import FromGenerator, NoiseSource

_SIXTEEN_BITS = (torch.bfloat16, torch.float16)


def ktied_output(
    x: Tensor, mean: Tensor, stored: StoredMean | None, factors: tuple[Tensor, Tensor], noise: NoiseSource
) -> Tensor | None:
    """``x M + √(x² (UVᵀ)²) ∘ ε`` by fused code; None where the general form has to serve.

    Args:
        x: (…, m) inputs.
        mean: M, fan-in × fan-out.
        stored: The parameter it shows, if it does.
        factors: U and V.
        noise: Where ε comes from. A GPU draws it from a seed, and so only in place of torch's own generators.
    """
    if mean.ndim != 2 or x.ndim < 2 or x.shape[-1] != mean.shape[-2]:
        return None
    if ordinary_on_cpu(x, mean, *factors):
        weight = _weight(mean, stored, mean.dtype)
        epsilon = noise((*x.shape[:-1], mean.shape[-1]), "normal", x)
        if x.ndim == 2:
            return ktied_linear(x, weight, *factors, epsilon)
        rows = ktied_linear(x.flatten(0, -2), weight, *factors, epsilon.flatten(0, -2))
    elif isinstance(noise, FromGenerator) and (dtype := _kernel_dtype(x, mean, *factors)) is not None:
        weight = _weight(mean, stored, dtype)
        seed = fresh_noise_seed(x.device, noise.generator)
        rows = ktied_linear_seeded(x.flatten(0, -2).to(dtype), weight, *factors, seed)
    else:
        return None
    return rows.reshape(*x.shape[:-1], mean.shape[-1])


def _weight(mean: Tensor, stored: StoredMean | None, dtype: torch.dtype) -> Tensor:
    """Fan-out × fan-in."""
    tapped = None if stored is None else stored.take(dtype)
    return mean.mT.to(dtype) if tapped is None else tapped[0]


def _kernel_dtype(x: Tensor, mean: Tensor, *factors: Tensor) -> torch.dtype | None:
    """The precision of the layer's matrix products, where the GPU has a kernel for them."""
    rank, kind = factors[0].shape[-1], x.device.type
    if not has_kernels(x) or rank * (rank + 1) // 2 > MOST_PAIRS or factors[0].dtype != torch.float32:
        return None
    if not (torch.compiler.is_compiling() or untransformed(x, mean, *factors)):
        return None
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    if dtype != mean.dtype and not torch.is_autocast_enabled(kind):
        return None
    return dtype if dtype in (torch.float32, *_SIXTEEN_BITS) else None
