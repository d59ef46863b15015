"""Many standard normals at a tenth of the time that torch's generator takes on a CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.kernels.eager import untransformed
from bayesrule.kernels.native import is_there, standard_normals
from bayesrule.kernels.operators import fresh_noise_seed, seeded_normals
from bayesrule.random import FromGenerator, Law, fresh_seed

FEWEST_NORMALS = 1 << 12
"""Below that torch is as fast as a seed is found."""


@dataclass(frozen=True)
class FastNoise(FromGenerator):
    """As `FromGenerator`; many normals on a CPU are made from a seed that the generator gives, by compiled code."""

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        """Fresh noise."""
        on_cpu = law == "normal" and like.device.type == "cpu" and like.dtype == torch.float32
        if on_cpu and torch.compiler.is_compiling():
            if self.generator is None and not torch.compiler.is_exporting() and math.prod(shape) >= FEWEST_NORMALS:
                # an operator of torch, which finds out by itself whether there is a library
                return seeded_normals(fresh_noise_seed(like.device), 1, math.prod(shape), like.dtype).view(shape)
        elif on_cpu and math.prod(shape) >= FEWEST_NORMALS and untransformed(like) and is_there():
            return standard_normals(fresh_seed(self.generator), shape)
        return super().__call__(shape, law, like)
