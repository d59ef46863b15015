"""Draws of small matrices and vectors by the compiled library of a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.kernels.joint import Joint, addresses
from bayesrule.kernels.joint_divergence import JointDivergence
from bayesrule.kernels.native import standard_normals
from bayesrule.kernels.native.library import function, library

KL = tuple[JointDivergence, Tensor]
"""A KL, and its slopes."""


class DrawsOnCPU:
    """As `Draws`, from seeds that are numbers.

    Args:
        joint: What to draw.
        places: As of `JointDraw`.
    """

    def __init__(self, joint: Joint, places: Sequence[int]) -> None:
        self.joint, self.places = joint, (ctypes.c_long * len(places))(*places)
        self._kept = function("draws_kept")(len(places), joint.sizes) if library() is not None else 0

    def ready(self) -> bool:
        """At any time."""
        return True

    def draw(self, seed: int) -> tuple[list[Tensor], Tensor, Tensor]:
        """Factors are kept. The link is zero."""
        joint = self.joint
        drawn = [torch.empty_like(mean) for mean in joint.means]
        kept, found = joint.means[0].new_empty(self._kept), addresses(drawn)
        function("draws")(len(drawn), joint.sizes, seed, self.places, joint.lie.addresses(), kept.data_ptr(), found)
        return drawn, kept, kept.new_zeros(())

    def join(self, link: Tensor, kept: Tensor, divergence: JointDivergence) -> tuple[Tensor, KL] | None:
        """As the library finds it."""
        found = divergence.number_and_slopes()
        if found is None:
            return None
        number, slopes = found  # too large a number is infinity, and no error
        return link + torch.scalar_tensor(number, dtype=link.dtype, device=link.device), (divergence, slopes)

    def still(self, kept: Tensor) -> bool:
        """Addresses are asked for anew."""
        return True

    def of_kl(self, of_link: Tensor) -> Tensor:
        """The same."""
        return of_link

    def gradients(
        self, seed: int, kept: Tensor, given: list[Tensor | None], joined: KL | None, of_link: Tensor | None
    ) -> list[Tensor]:
        """Each a tensor of its own, which others may keep or write over."""
        joint, whole = self.joint, [None if gradient is None else gradient.contiguous() for gradient in given]
        tensors = addresses([each for pair in zip(joint.means, whole, strict=True) for each in pair])
        of_divergence: tuple[int | None, object, float] = (None, None, 0.0)
        if of_link is not None and joined is not None:
            of_divergence = joined[1].data_ptr(), joined[0].precisions, of_link.item()
        found = list(map(torch.empty_like, joint.parameters))
        there = function("draws_backward")(
            len(whole), joint.sizes, seed, self.places, kept.data_ptr(), tensors, *of_divergence, addresses(found)
        )
        if not there:
            raise MemoryError("There is no memory for the gradients of drawn weights")
        return found

    def normals(self, seed: int, index: int) -> Tensor:
        """As the library makes them."""
        return standard_normals(seed + self.places[index], tuple(self.joint.means[index].shape))
