"""A draw of all small matrices and vectors of a model by one call of code of our own, and one node.

What such a draw costs is calls, not numbers. Its noise is made from a seed, and again for the gradient. A KL of the
same parameters can be an output of this node, so that each of their gradients is made once, and whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, is_
from threading import get_ident
from typing import Any, Protocol, runtime_checkable
from weakref import ref

import torch
from torch import Tensor

from bayesrule.kernels.joint import Joint, Piece
from bayesrule.kernels.joint_divergence import JointDivergence
from bayesrule.kernels.joint_on_cpu import DrawsOnCPU
from bayesrule.kernels.joint_on_gpu import DrawsOnGPU
from bayesrule.kernels.linked_kl import changed_in_place, check_unchanged, versions_of
from bayesrule.kernels.plain_gradients import gradients_again, to_be_differentiated
from bayesrule.random import in_graph


@runtime_checkable
class Draws(Protocol):
    """Who draws. A link is an output of the node besides the draws, through which a KL gets its gradient to it."""

    def ready(self) -> bool:
        """Whether they can be drawn now, where they are `served`."""

    def draw(self, seed: Any) -> tuple[list[Tensor], Any, Tensor]:
        """The draws, what is kept of them, and the link."""

    def join(self, link: Tensor, kept: Any, divergence: JointDivergence) -> tuple[Tensor, Any] | None:
        """The KL through the link, and what it keeps; None where it must have a node of its own."""

    def still(self, kept: Any) -> bool:
        """Whether the parameters are where they were at the draw, if that matters."""

    def of_kl(self, of_link: Tensor) -> Tensor:
        """The KL's gradient, from that of the link."""

    def gradients(
        self, seed: Any, kept: Any, given: list[Tensor | None], joined: Any, of_link: Tensor | None
    ) -> list[Tensor]:
        """Those of all parameters, from those of the draws, and of a KL that has joined."""

    def normals(self, seed: Any, index: int) -> Tensor:
        """The noise of a piece."""


_wanted_by = attrgetter("requires_grad")


def _wanted(parameters: Sequence[Tensor]) -> list[bool]:
    return list(map(_wanted_by, parameters))


@dataclass
class Joined:
    """The KL that has joined a node, if one has.

    Attributes:
        divergence: The KL.
        kept: What it has found.
    """

    divergence: JointDivergence | None = None
    kept: Any = None


class DrawnKL:
    """Where a KL of just what was drawn joins the node that drew it, once, until the node has run backwards.

    Args:
        draws: Who drew.
        parameters: That were drawn from.
    """

    def __init__(self, draws: Draws, parameters: Sequence[Tensor]) -> None:
        self.draws, self.joined, self.kept = draws, Joined(), None
        self.parameters, self.versions, self.wanted = parameters, versions_of(parameters), _wanted(parameters)
        self._link: Tensor | None = None
        self._made_in = in_graph(), get_ident()

    def expect(self, link: Tensor) -> None:
        """The node's output whose gradient is the KL's."""
        self._link = link if link.requires_grad else None

    def forget(self) -> None:
        """The node has run, or found its KL."""
        self._link = None

    def sum(self, divergence: JointDivergence) -> Tensor | None:
        """The KL as part of the node; None where it must have one of its own, as in other threads."""
        link = self._link
        self.forget()
        if link is None or self._made_in != (in_graph(), get_ident()) or not self._is_of(divergence.parameters):
            return None
        found = self.draws.join(link, self.kept, divergence)
        if found is None:
            return None
        self.joined.divergence, self.joined.kept = divergence, found[1]
        return found[0]

    def _is_of(self, parameters: Sequence[Tensor]) -> bool:
        """Whether these are the node's inputs, as they were then, and the node gives a gradient to all who want one."""
        same = len(parameters) == len(self.parameters) and all(map(is_, parameters, self.parameters))
        return same and versions_of(parameters) == self.versions and _wanted(parameters) == self.wanted


class JointDraw(Joint):
    """Made once, and asked for draws as often as the parameters are the same tensors.

    Args:
        pieces: What to draw.
        places: A number for each, which with a seed gives its noise: the same, whatever is drawn beside it.
    """

    def __init__(self, pieces: Sequence[Piece], places: Sequence[int]) -> None:
        super().__init__(pieces)
        self.draws: Draws = (DrawsOnCPU if self.device.type == "cpu" else DrawsOnGPU)(self, places)
        self.owners = [index for index, piece in enumerate(pieces) for _ in piece.stored.parameters]

    def frozen(self, wanted: Sequence[bool]) -> list[int]:
        """The pieces none of whose parameters want a gradient."""
        free = set(compress(self.owners, wanted))
        return [index for index in range(len(self.pieces)) if index not in free]

    def draw(self, seed: Any) -> tuple[list[Tensor], DrawnKL]:
        """A draw of each, as its mean lies, where they are `served`; and where a KL may join."""
        kl = DrawnKL(self.draws, self.parameters)
        *drawn, link = _Draws.apply(self, seed, kl, *self.parameters)
        kl.expect(link)
        return drawn, kl

    def plain(self, seed: Any, parameters: Sequence[Tensor]) -> list[Tensor]:
        """`draw` in plain operations, at any parameters."""
        left, found = iter(parameters), []
        for index, piece in enumerate(self.pieces):
            mean, logs = next(left), next(left)
            std = logs.exp() if not piece.rank else (next(left).exp() @ logs.exp().mT).view(mean.shape)
            found.append(mean + std * self.draws.normals(seed, index))
        return found


class _Draws(torch.autograd.Function):
    """Nothing is saved that hooks would see: a checkpointed region that finds its draws made must save no less."""

    @staticmethod
    def forward(ctx: Any, joint: JointDraw, seed: Any, kl: DrawnKL, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        drawn, kl.kept, link = joint.draws.draw(seed)
        ctx.joint, ctx.seed, ctx.kept, ctx.versions = joint, seed, kl.kept, kl.versions
        ctx.joined, ctx.kl = kl.joined, ref(kl)  # which has this node
        if not all(kl.wanted):  # nothing is found for draws of which nobody wants a gradient
            ctx.mark_non_differentiable(*(drawn[index] for index in joint.frozen(kl.wanted)))
        return *drawn, link

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        joint, joined, (*of_draws, of_link) = ctx.joint, ctx.joined, gradients
        check_unchanged(joint.parameters, ctx.versions)
        if (kl := ctx.kl()) is not None:
            kl.forget()
        if to_be_differentiated(*gradients):
            of_kl = None if of_link is None else joint.draws.of_kl(of_link)
            return None, None, None, *_again(joint, ctx.seed, joined, of_draws, of_kl)
        if not joint.lie.unchanged() or not joint.draws.still(ctx.kept):  # they are read again, or written as they lie
            raise changed_in_place()
        slopes: list[Tensor | None] = joint.draws.gradients(ctx.seed, ctx.kept, of_draws, joined.kept, of_link)
        if of_link is None:
            unused = (of_draws[index] is None for index in joint.owners)
            slopes = [None if none else slope for none, slope in zip(unused, slopes, strict=True)]
        return None, None, None, *slopes


def _again(
    joint: JointDraw, seed: Any, joined: Joined, of_draws: list[Tensor | None], of_kl: Tensor | None
) -> list[Tensor | None]:
    """The gradients as a graph of plain operations."""
    found: list[Tensor | None] = [None] * len(joint.parameters)
    if any(gradient is not None for gradient in of_draws):
        found = [*gradients_again(joint.parameters, lambda *given: joint.plain(seed, given), of_draws)]
    if of_kl is not None and joined.divergence is not None:
        pairs = zip(found, joined.divergence.again(of_kl), strict=True)
        found = [one if other is None else other if one is None else one + other for one, other in pairs]
    return found
