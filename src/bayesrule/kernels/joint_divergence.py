"""The KLs of all small matrices and vectors of a model by one call of the compiled library, and one node."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from bayesrule.kernels.divergence import constant, diagonal_again, ktied_again
from bayesrule.kernels.joint import Joint, Piece
from bayesrule.kernels.linked_kl import check_unchanged, versions_of
from bayesrule.kernels.native.library import function
from bayesrule.kernels.plain_gradients import to_be_differentiated


class Term(NamedTuple):
    """The KL of a piece to a normal prior.

    Attributes:
        piece: The piece.
        centre: The prior's mean: zero for matrices.
        precision: The prior's precision.
    """

    piece: Piece
    centre: float
    precision: float

    @property
    def constant(self) -> float:
        """What the entries add, whatever their parameters."""
        return constant(self.precision) * self.piece.mean.numel()

    @property
    def sloping(self) -> tuple[Tensor, ...]:
        """The parameters whose slopes the library finds; a matrix's mean is its own."""
        parameters = self.piece.stored.parameters
        return parameters[1:] if self.piece.rank else parameters

    def again(self, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients in plain operations, where they are to be differentiated in their turn."""
        if self.piece.rank:
            return ktied_again(gradient, self.piece.stored.parameters, self.precision)
        return diagonal_again(gradient, self.piece.stored.parameters, self.centre, self.precision)


class JointDivergence(Joint):
    """Made once, and asked for a sum as often as the parameters are the same tensors."""

    def __init__(self, terms: Sequence[Term]) -> None:
        super().__init__([term.piece for term in terms])
        self.terms = tuple(terms)
        self.sloping = [each for term in terms for each in term.sloping]
        self.entries = sum(each.numel() for each in self.sloping)
        self.constant = math.fsum(term.constant for term in terms)
        self.centres = (ctypes.c_double * len(terms))(*(term.centre for term in terms))
        self.precisions = (ctypes.c_double * len(terms))(*(term.precision for term in terms))

    def number_and_slopes(self) -> tuple[float, Tensor] | None:
        """The sum of the KLs, and of each the slopes, one after another; None where plain operations have to serve."""
        if self.device.type != "cpu" or not self.served():
            return None
        slopes, value = self.parameters[0].new_empty(self.entries), ctypes.c_double()
        found = function("divergences")(
            len(self.pieces), self.sizes, self.centres, self.precisions, self.lie.addresses(), slopes.data_ptr(),
            ctypes.byref(value),
        )  # fmt: skip
        return (value.value + self.constant, slopes) if found else None

    def sum(self) -> Tensor | None:
        """The sum of the KLs; None likewise."""
        found = self.number_and_slopes()
        return None if found is None else _Joint.apply(self, *found, *self.parameters)

    def again(self, gradient: Tensor) -> list[Tensor | None]:
        """The gradients in plain operations."""
        return [slope for term in self.terms for slope in term.again(gradient)]

    def gradients(self, slopes: Tensor, by: float) -> list[Tensor | None]:
        """The gradients of all parameters, but for means whose layer will see to it."""
        scaled = iter(_unflatten_dense_tensors(slopes * by, self.sloping))
        found: list[Tensor | None] = []
        for term in self.terms:
            if term.piece.rank:
                mean, multiple = term.piece.mean, by * term.precision
                found.append(None if term.piece.stored.tap.left.leave(mean, multiple) else mean.detach() * multiple)
            found += [next(scaled), next(scaled)]
        return found


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint: JointDivergence, value: float, slopes: Tensor, *parameters: Tensor) -> Tensor:
        ctx.joint, ctx.slopes, ctx.versions = joint, slopes, versions_of(parameters)
        return torch.scalar_tensor(
            value, dtype=slopes.dtype, device=slopes.device
        )  # too large a number is infinity, and no error

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        joint: JointDivergence = ctx.joint
        check_unchanged(joint.parameters, ctx.versions)
        if to_be_differentiated(gradient):
            return None, None, None, *joint.again(gradient)
        return None, None, None, *joint.gradients(ctx.slopes, gradient.item())
