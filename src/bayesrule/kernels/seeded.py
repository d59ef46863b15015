"""Where a GPU may make the noise of a layer from a seed, and in which precision the layer then computes."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.cuda_graphs import independent
from bayesrule.kernels.eager import untransformed
from bayesrule.kernels.operators import fresh_noise_seed, has_kernels
from bayesrule.random import FromGenerator, NoiseSource

_PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)


def seeded_dtype(x: Tensor, mean: Tensor, noise: NoiseSource, *others: Tensor) -> torch.dtype | None:
    """The precision of a layer's matrix products, where a GPU has kernels for its noise; None where it has not.

    Parameters are in float32, and noise that is not from torch's own generators is not made from a seed.
    """
    if not (isinstance(noise, FromGenerator) and has_kernels(x)):
        return None
    if not (torch.compiler.is_compiling() or untransformed(x, mean, *others)):
        return None
    autocast = torch.is_autocast_enabled(x.device.type)
    if any(each.dtype != torch.float32 for each in (mean, *others, *(() if autocast else (x,)))):
        return None
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return dtype if dtype in _PRECISIONS else None


def seed_of(noise: NoiseSource, device: torch.device) -> Tensor:
    """A fresh one, from the generator that the noise is from."""
    return fresh_noise_seed(device, noise.generator if isinstance(noise, FromGenerator) else None)


def early_seed(noise: NoiseSource, device: torch.device) -> Tensor:
    """As `seed_of`, on the lane of seeds in a recorded graph, for an operator that waits for that."""
    if torch.compiler.is_compiling():
        return seed_of(noise, device)
    return independent(lambda: seed_of(noise, device))
