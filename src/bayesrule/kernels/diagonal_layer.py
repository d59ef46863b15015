"""Which code serves a mean-field dense layer: one node on a CPU, one operator on a GPU, or none."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bayesrule.kernels.diagonal_linear import diagonal_linear
from bayesrule.kernels.eager import ordinary_on_cpu
from bayesrule.kernels.scaled_noise import add_scaled_noise
from bayesrule.kernels.seeded import seed_of, seeded_dtype
from bayesrule.kernels.tap import StoredParameters, layer_tensors
from bayesrule.random import NoiseSource


def diagonal_output(
    x: Tensor, mean: Tensor, stored: StoredParameters | None, log_std: Tensor | None, std: Callable[[], Tensor],
    noise: NoiseSource,
) -> Tensor | None:  # fmt: skip
    """``x M + √(x² σ²) ∘ ε`` by fused code; None where the general form has to serve.

    Args:
        x: (…, m) inputs.
        mean: M, fan-in × fan-out.
        stored: The parameters that it and the logarithms show, if they do.
        log_std: log σ, if that is what is given.
        std: Finds σ, where it is not.
        noise: Where ε comes from. A GPU draws it from a seed, and so only in place of torch's own generators.
    """
    if mean.ndim != 2 or x.ndim < 2 or x.shape[-1] != mean.shape[-2]:
        return None
    shape, rows = (*x.shape[:-1], mean.shape[-1]), x.flatten(0, -2)
    if log_std is not None and ordinary_on_cpu(x, mean, log_std):
        weight, logs = layer_tensors(mean, stored, (log_std,), mean.dtype)
        return diagonal_linear(rows, weight, logs, noise(shape, "normal", x).flatten(0, -2)).reshape(shape)
    dtype = seeded_dtype(x, mean, noise, *(() if log_std is None else (log_std,)))
    if dtype is None:
        return None
    if log_std is None:
        weight, spread = mean.mT.to(dtype), std()
    else:
        weight, logs = layer_tensors(mean, stored, (log_std,), dtype)
        spread = logs.exp()
    # float16 holds neither σ² nor x²; bfloat16 has float32's range, and its digits are enough for a sum of squares.
    wide = torch.bfloat16 if dtype == torch.bfloat16 else spread.dtype
    with torch.autocast(x.device.type, enabled=False):
        variance = rows.to(wide).square() @ spread.square().to(wide)
        return add_scaled_noise(rows.to(dtype) @ weight.mT, variance, seed_of(noise, x.device)).reshape(shape)
