"""Which code serves a k-tied dense layer: one node on a CPU, one operator on a GPU, or none."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.kernels.eager import ordinary_on_cpu
from bayesrule.kernels.fast_noise import normals_or_seed
from bayesrule.kernels.ktied_linear import ktied_linear
from bayesrule.kernels.linear_operator import Bias, BiasLaw, ktied_linear_seeded
from bayesrule.kernels.operators import MOST_PAIRS
from bayesrule.kernels.seeded import early_seed, seeded_dtype
from bayesrule.kernels.tap import StoredParameters, layer_tensors
from bayesrule.random import FromGenerator, NoiseSource


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
        bias: To be added; its noise, if any, comes after ε. Other sources than generators have another for it.
    """
    if mean.ndim != 2 or x.ndim < 2 or x.shape[-1] != mean.shape[-2]:
        return None
    if ordinary_on_cpu(x, mean, *logs):
        law = None if bias is None or not isinstance(noise, FromGenerator) else bias()
        if bias is not None and (law is None or not ordinary_on_cpu(x, *(each for each in law if each is not None))):
            return None
        weight, fan_in, fan_out = layer_tensors(mean, stored, logs, mean.dtype)
        epsilon = normals_or_seed(noise, (*x.shape[:-1], mean.shape[-1]), x)
        of_bias: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
        if law is not None:
            of_bias = law[0], law[1], None if law[1] is None else noise(tuple(law[1].shape), "normal", x)
        left = stored.tap.left if stored is not None and weight is stored.parameters[0] else None
        if x.ndim == 2:
            return ktied_linear(x, weight, fan_in, fan_out, epsilon, *of_bias, left)
        flat = epsilon.flatten(0, -2) if isinstance(epsilon, Tensor) else epsilon
        rows = ktied_linear(x.flatten(0, -2), weight, fan_in, fan_out, flat, *of_bias, left)
    elif _few_pairs(logs[0].shape[-1]) and (dtype := seeded_dtype(x, mean, noise, *logs)) is not None:
        law = None if bias is None else bias()
        if bias is not None and (law is None or not _in_float32(law)):
            return None
        weight, fan_in, fan_out = layer_tensors(mean, stored, logs, dtype)
        seed = early_seed(noise, x.device)
        rows = ktied_linear_seeded(x.flatten(0, -2).to(dtype), weight, fan_in, fan_out, seed, law)
    else:
        return None
    return rows.reshape(*x.shape[:-1], mean.shape[-1])


def _few_pairs(rank: int) -> bool:
    return rank * (rank + 1) // 2 <= MOST_PAIRS


def _in_float32(bias: Bias) -> bool:
    return all(tensor is None or (tensor.dtype == torch.float32 and tensor.is_contiguous()) for tensor in bias)
