"""Draws of small matrices and vectors by Triton kernels, and their KL to normal priors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from bayesrule.kernels.joint import Joint
from bayesrule.kernels.joint_divergence import JointDivergence
from bayesrule.kernels.operators import seeded_normals
from bayesrule.random import in_graph

if TYPE_CHECKING:
    from bayesrule.kernels.triton_joint import Tables

_recorded: dict[int, Tensor] = {}
"""What graphs read that may be replayed at any time, by address: some kilobytes for each."""


class _KL(NamedTuple):
    """What is known of a KL: of the pieces, centres and precisions, and what weighs the sums that a draw has found."""

    divergence: JointDivergence
    tables: Tables
    priors: Tensor
    weights: Tensor


class DrawsOnGPU:
    """As `Draws`, from seeds in the GPU's memory, where a captured graph gets new ones with every replay.

    Args:
        joint: What to draw.
        places: As of `JointDraw`.
    """

    def __init__(self, joint: Joint, places: Sequence[int]) -> None:
        self.joint, self.places = joint, places
        self._made: tuple[list[int], Tables] | None = None
        self._kl: _KL | None = None
        self._is_mean = [index == 0 for piece in joint.pieces for index, _ in enumerate(piece.stored.parameters)]
        self._logs = [each for each, mean in zip(joint.parameters, self._is_mean, strict=True) if not mean]

    def ready(self) -> bool:
        """Not where a graph is recorded, and parameters are not where they were."""
        return self._tables() is not None

    def _tables(self) -> Tables | None:
        lie = list(map(Tensor.data_ptr, self.joint.parameters))
        if self._made is None or self._made[0] != lie:
            if in_graph():
                return None
            from bayesrule.kernels.triton_joint import Tables

            self._made = lie, Tables(self.joint.pieces, self.places)
        return self._made[1]

    def draw(self, seed: Tensor) -> tuple[list[Tensor], Tables, Tensor]:
        """The link is what was found for the KL."""
        tables = cast("Tables", self._tables())  # who draws has asked
        _keep(*tables.read)
        out, found = tables.draw(seed)
        return list(map(_apart, _views(out, tables))), tables, found

    def join(self, link: Tensor, kept: Tables, divergence: JointDivergence) -> tuple[Tensor, _KL] | None:
        """Sums that the draw has found, weighed; priors elsewhere than around zero want them of what is centred."""
        if self._tables() is not kept or any(term.centre for term in divergence.terms):
            return None
        kl = self._kl
        if kl is None or kl.divergence is not divergence or kl.tables is not kept:
            if in_graph():
                return None
            kl = self._kl = _known(divergence, kept)
        _keep(kl.priors, kl.weights)
        return torch.dot(link, kl.weights), kl

    def still(self, kept: Tables) -> bool:
        """Tables have addresses."""
        return self._tables() is kept

    def of_kl(self, of_link: Tensor) -> Tensor:
        """That of a zero in the link, of weight one."""
        return of_link[0]

    def gradients(
        self, seed: Tensor, kept: Tables, given: list[Tensor | None], joined: _KL | None, of_link: Tensor | None
    ) -> list[Tensor]:
        """Parts of two tensors, each as one of its own, which others may write over."""
        whole = [None if gradient is None else gradient.contiguous() for gradient in given]
        priors = None if of_link is None or joined is None else joined.priors
        means, logs = kept.gradients(whole, seed, None if priors is None else of_link, priors)
        of_means, of_logs = map(_apart, _views(means, kept)), map(_apart, _unflatten_dense_tensors(logs, self._logs))
        return [next(of_means if is_mean else of_logs) for is_mean in self._is_mean]

    def normals(self, seed: Tensor, index: int) -> Tensor:
        """As the kernels make them."""
        piece = self.joint.pieces[index]
        rows, columns = (piece.sizes[1], piece.sizes[0]) if piece.rank else (1, piece.sizes[0])
        return seeded_normals(seed + self.places[index], rows, columns, torch.float32).view(piece.mean.shape)


def _views(flat: Tensor, tables: Tables) -> list[Tensor]:
    """Of the draws, or of what lies as they do."""
    return list(_unflatten_dense_tensors(flat, tables.with_gaps)[::2])


def _apart(view: Tensor) -> Tensor:
    """The same memory; changes in place of others do not count as its own."""
    return view.new_empty(0).set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())


def _keep(*read: Tensor) -> None:
    if in_graph():
        _recorded.update((tensor.data_ptr(), tensor) for tensor in read)


def _known(divergence: JointDivergence, tables: Tables) -> _KL:
    priors = [(term.centre, term.precision) for term in divergence.terms]
    of_pieces = torch.tensor(priors, dtype=torch.float32, device=divergence.device)
    return _KL(divergence, tables, of_pieces, tables.weights_of(priors, divergence.constant))
