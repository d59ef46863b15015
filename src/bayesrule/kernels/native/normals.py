"""The library's standard normals."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.kernels.native.library import function

Noise = Tensor | int
"""Standard normals, or the seed that they are made from: where they are needed, and again for the gradient."""


def normals_of(noise: Noise, shape: tuple[int, ...]) -> Tensor:
    """The normals."""
    return noise if isinstance(noise, Tensor) else standard_normals(noise, shape)


def standard_normals(seed: int, shape: tuple[int, ...]) -> Tensor:
    """Always the same ones for a seed and a number of them, where `is_there` says that there is a library."""
    found = torch.empty(shape, dtype=torch.float32, device="cpu")
    function("standard_normals")(seed, found.numel(), found.data_ptr())
    return found
