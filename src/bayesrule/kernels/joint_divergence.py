"""The KLs of all small matrices and vectors of a model by one call of the compiled library, and one node."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.kernels.eager import ordinary_on_cpu
from bayesrule.kernels.linked_kl import Slopes, check_unchanged, versions_of
from bayesrule.kernels.native import serves
from bayesrule.kernels.native.library import function
from bayesrule.kernels.plain_gradients import to_be_differentiated
from bayesrule.kernels.tap import StoredParameters


class Piece(NamedTuple):
    """One of these KLs, to a normal prior.

    Attributes:
        stored: A mean with log U and log V, or with log σ.
        sizes: Fan-in, fan-out and rank; of a vector its size and twice nothing.
        centre: The prior's mean.
        precision: The prior's precision.
        differentiable: The slopes by plain operations, as in `LinkedKL`.
    """

    stored: StoredParameters
    sizes: tuple[int, int, int]
    centre: float
    precision: float
    differentiable: Slopes

    @property
    def shapes(self) -> list[torch.Size]:
        """Of the tensors whose slopes the library finds; a matrix's mean is its own."""
        parameters = self.stored.parameters
        return [each.shape for each in (parameters if self.sizes[2] == 0 else parameters[1:])]

    @property
    def constant(self) -> float:
        """What the entries add, whatever their parameters."""
        return -0.5 * (1 + math.log(self.precision)) * self.stored.parameters[0].numel()


class JointDivergence:
    """Made once, and asked for a sum as often as the parameters are the same tensors."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)
        self.parameters = tuple(parameter for piece in pieces for parameter in piece.stored.parameters)
        self.wanted = [parameter.shape for parameter in self.parameters]
        self.shapes = [shape for piece in pieces for shape in piece.shapes]
        self.lengths = [shape.numel() for shape in self.shapes]
        self.constant = math.fsum(piece.constant for piece in pieces)
        sizes = [size for piece in pieces for size in piece.sizes]
        numbers = [number for piece in pieces for number in (piece.centre, piece.precision)]
        self._sizes, self._numbers = (ctypes.c_long * len(sizes))(*sizes), (ctypes.c_double * len(numbers))(*numbers)

    def sum(self) -> Tensor | None:
        """The sum of the KLs; None where plain operations have to serve."""
        fit = [parameter.shape for parameter in self.parameters] == self.wanted
        if not fit or not ordinary_on_cpu(*self.parameters) or not serves(0, *self.parameters):
            return None
        slopes, value = self.parameters[0].new_empty(sum(self.lengths)), ctypes.c_double()
        places = self._places()
        found = function("divergences")(
            len(self.pieces), ctypes.addressof(self._sizes), ctypes.addressof(self._numbers),
            ctypes.addressof(places), slopes.data_ptr(), ctypes.addressof(value),
        )  # fmt: skip
        if not found:
            return None
        return _Joint.apply(self, value.value + self.constant, slopes, *self.parameters)

    def scaled(self, slopes: Tensor, by: float) -> list[Tensor | None]:
        """The gradients of all parameters, but for means whose layer will see to it."""
        of_logs = iter((slopes * by).split(self.lengths))
        shapes = iter(self.shapes)
        found: list[Tensor | None] = []
        for piece in self.pieces:
            if piece.sizes[2]:
                mean, multiple = piece.stored.parameters[0], by * piece.precision
                found.append(None if piece.stored.tap.left.leave(mean, multiple) else mean.detach() * multiple)
            found += [next(of_logs).view(next(shapes)) for _ in range(2)]
        return found

    def _places(self) -> Any:
        """Where each piece's tensors lie."""
        places = (ctypes.c_void_p * (3 * len(self.pieces)))()
        for index, piece in enumerate(self.pieces):
            for offset, parameter in enumerate(piece.stored.parameters):
                places[3 * index + offset] = parameter.data_ptr()
        return places


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint: JointDivergence, value: float, slopes: Tensor, *parameters: Tensor) -> Tensor:
        ctx.joint, ctx.slopes, ctx.versions = joint, slopes, versions_of(parameters)
        return torch.tensor(value, dtype=slopes.dtype)  # too large a number is infinity, and no error

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        joint: JointDivergence = ctx.joint
        check_unchanged(joint.parameters, ctx.versions)
        if not to_be_differentiated(gradient):
            return None, None, None, *joint.scaled(ctx.slopes, gradient.item())
        again = (piece.differentiable(gradient, piece.stored.parameters) for piece in joint.pieces)
        return None, None, None, *(slope for slopes in again for slope in slopes)
