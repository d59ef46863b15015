"""A draw of all small matrices and vectors of a model by one call of the compiled library, and one node.

What such a draw costs is calls, not numbers. Its noise is made from a seed, and again for the gradient. A KL of the
same parameters can be an output of this node, so that each of their gradients is made once, and whole.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from bayesrule.kernels.joint import Joint, Lie, Piece, addresses
from bayesrule.kernels.joint_divergence import JointDivergence
from bayesrule.kernels.linked_kl import changed_in_place, check_unchanged, versions_of
from bayesrule.kernels.native import is_there, standard_normals
from bayesrule.kernels.native.library import function
from bayesrule.kernels.plain_gradients import gradients_again, to_be_differentiated


@dataclass
class Joined:
    """A KL that has joined a node: nothing before it is asked for.

    Attributes:
        divergence: The KL.
        slopes: What it has found.
    """

    divergence: JointDivergence | None = None
    slopes: Tensor | None = None


class DrawnKL:
    """Where a KL of just what was drawn joins the node that drew it, once, until the node has run backwards.

    Args:
        parameters: That were drawn from.
    """

    def __init__(self, parameters: Sequence[Tensor] = ()) -> None:
        self.joined = Joined()
        self.versions = versions_of(parameters)
        self._link: Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and files of a model begin without a pass."""
        return DrawnKL, ()

    def expect(self, link: Tensor) -> None:
        """The node's output whose gradient is the KL's."""
        self._link = link if link.requires_grad else None

    def forget(self) -> None:
        """The node has run, or found its KL."""
        self._link = None

    def sum(self, divergence: JointDivergence) -> Tensor | None:
        """The KL as part of the node; None where it must have one of its own."""
        link = self._link
        self.forget()
        if link is None or versions_of(divergence.parameters) != self.versions:
            return None
        found = divergence.number_and_slopes()
        if found is None:
            return None
        self.joined.divergence, self.joined.slopes = divergence, found[1]
        return link + torch.scalar_tensor(found[0], dtype=link.dtype)  # too large a number is infinity, and no error


class JointDraw(Joint):
    """Made once, and asked for draws as often as the parameters are the same tensors.

    Args:
        pieces: What to draw.
        places: A number for each, which with a seed gives its noise: the same, whatever is drawn beside it.
    """

    def __init__(self, pieces: Sequence[Piece], places: Sequence[int]) -> None:
        super().__init__(pieces)
        self.places = (ctypes.c_long * len(places))(*places)
        self.means_lie = Lie(self.means)
        self.owners = [index for index, piece in enumerate(pieces) for _ in piece.stored.parameters]
        self.entries = sum(parameter.numel() for parameter in self.parameters)
        self.kept = function("draws_kept")(len(pieces), self.sizes) if is_there() else 0

    def draw(self, seed: int) -> tuple[list[Tensor], DrawnKL]:
        """A draw of each, as its mean lies, where they are `served`; and where a KL may join."""
        kl = DrawnKL(self.parameters)
        *drawn, link = _Draws.apply(self, seed, kl, *self.parameters)
        kl.expect(link)
        return drawn, kl

    def plain(self, seed: int, parameters: Sequence[Tensor]) -> list[Tensor]:
        """`draw` in plain operations, at any parameters."""
        left, found = iter(parameters), []
        for piece, place in zip(self.pieces, self.places, strict=True):
            mean, logs = next(left), next(left)
            noise = standard_normals(seed + place, tuple(mean.shape))
            std = logs.exp() if not piece.rank else (next(left).exp() @ logs.exp().mT).view(mean.shape)
            found.append(mean + std * noise)
        return found


class _Draws(torch.autograd.Function):
    """Nothing is saved that hooks would see: a checkpointed region that finds its draws made must save no less."""

    @staticmethod
    def forward(ctx: Any, joint: JointDraw, seed: int, kl: DrawnKL, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        drawn = [torch.empty_like(mean) for mean in joint.means]
        kept, found = parameters[0].new_empty(joint.kept), addresses(drawn)
        function("draws")(len(drawn), joint.sizes, seed, joint.places, joint.lie.addresses(), kept.data_ptr(), found)
        ctx.joint, ctx.seed, ctx.kept, ctx.versions = joint, seed, kept, kl.versions
        ctx.joined, ctx.kl = kl.joined, ref(kl)  # which has this node
        return *drawn, kept.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        joint, joined, kept, (*of_draws, of_kl) = ctx.joint, ctx.joined, ctx.kept, gradients
        check_unchanged(joint.parameters, ctx.versions)
        if (kl := ctx.kl()) is not None:
            kl.forget()
        if to_be_differentiated(*gradients):
            return None, None, None, *_again(joint, ctx.seed, joined, of_draws, of_kl)
        if not joint.means_lie.unchanged():  # which are read again
            raise changed_in_place()
        given = [None if gradient is None else gradient.contiguous() for gradient in of_draws]
        tensors = addresses([each for pair in zip(joint.means, given, strict=True) for each in pair])
        of_divergence = (None, None, 0.0)
        if of_kl is not None:
            of_divergence = joined.slopes.data_ptr(), joined.divergence.precisions, of_kl.item()
        flat = kept.new_empty(joint.entries)
        found = function("draws_backward")(
            len(given), joint.sizes, ctx.seed, joint.places, kept.data_ptr(), tensors, *of_divergence, flat.data_ptr()
        )
        if not found:
            raise MemoryError("There is no memory for the gradients of drawn weights")
        slopes: list[Tensor | None] = [*_unflatten_dense_tensors(flat, joint.parameters)]
        if of_kl is None:
            unused = (given[index] is None for index in joint.owners)
            slopes = [None if none else slope for none, slope in zip(unused, slopes, strict=True)]
        return None, None, None, *slopes


def _again(
    joint: JointDraw, seed: int, joined: Joined, of_draws: list[Tensor | None], of_kl: Tensor | None
) -> list[Tensor | None]:
    """The gradients as a graph of plain operations."""
    found: list[Tensor | None] = [None] * len(joint.parameters)
    if any(gradient is not None for gradient in of_draws):
        found = [*gradients_again(joint.parameters, lambda *given: joint.plain(seed, given), of_draws)]
    if of_kl is not None and joined.divergence is not None:
        pairs = zip(found, joined.divergence.again(of_kl), strict=True)
        found = [one if other is None else other if one is None else one + other for one, other in pairs]
    return found
