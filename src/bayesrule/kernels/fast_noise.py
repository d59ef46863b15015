"""Many standard normals at a tenth of the time that torch's generator takes on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.kernels.eager import untransformed
from bayesrule.kernels.native import Noise, is_there, standard_normals
from bayesrule.kernels.operators import fresh_noise_seed, seeded_normals
from bayesrule.random import FromGenerator, Law, NoiseSource, fresh_seed

FEWEST_NORMALS = 1 << 12
"""Below that torch is as fast as a seed is found."""


@dataclass(frozen=True)
class FastNoise(FromGenerator):
    """As `FromGenerator`; many normals on a CPU are made from a seed that the generator gives, by compiled code."""

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Fresh noise."""
        if law == "normal" and _single_on_cpu(like) and math.prod(shape) >= FEWEST_NORMALS:
            if torch.compiler.is_compiling():
                if self.generator is None and not torch.compiler.is_exporting():
                    # an operator of torch, which finds out by itself whether there is a library
                    return seeded_normals(fresh_noise_seed(like.device), 1, math.prod(shape), like.dtype).view(shape)
            elif untransformed(like) and is_there():
                return standard_normals(fresh_seed(self.generator), shape)
        return super().__call__(shape, law, like)


def normals_or_seed(source: NoiseSource, shape: tuple[int, ...], like: Tensor) -> Noise:
    """Standard normals for the compiled library on a CPU: a seed, of which it makes the same by itself, where many."""
    if isinstance(source, FastNoise) and math.prod(shape) >= FEWEST_NORMALS and _single_on_cpu(like) and is_there():
        return fresh_seed(source.generator)
    return source(shape, "normal", like)


def _single_on_cpu(like: Tensor) -> bool:
    return like.device.type == "cpu" and like.dtype == torch.float32
