"""Small matrices and vectors of a model that are handed to the compiled library together, by their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.kernels.eager import untransformed
from bayesrule.kernels.native import is_there
from bayesrule.kernels.native.diagonal import SHORT
from bayesrule.kernels.native.ktied import MOST_COLUMNS
from bayesrule.kernels.tap import StoredParameters


class Piece(NamedTuple):
    """One of them.

    Attributes:
        stored: A mean that lies fan-out × fan-in, with log U and log V; or a vector with log σ.
        sizes: Fan-in, fan-out and rank; of a vector its size and twice nothing.
    """

    stored: StoredParameters
    sizes: tuple[int, int, int]

    @property
    def rank(self) -> int:
        """Of a matrix; 0 of a vector."""
        return self.sizes[2]

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.stored.parameters[0]


def ktied_piece(stored: StoredParameters) -> Piece | None:
    """A k-tied matrix; None where it is better served apart."""
    mean, fan_in_logs, fan_out_logs = stored.parameters
    sizes = fan_in, fan_out, rank = fan_in_logs.shape[0], fan_out_logs.shape[0], fan_in_logs.shape[1]
    fits = mean.shape[0] == fan_out and mean.numel() == fan_in * fan_out and fan_out_logs.shape[1] == rank
    return Piece(stored, sizes) if fits and stored.few and rank <= MOST_COLUMNS else None


def diagonal_piece(stored: StoredParameters) -> Piece | None:
    """A short vector of independent entries."""
    mean, log_std = stored.parameters
    fits = mean.ndim == 1 and mean.shape == log_std.shape
    return Piece(stored, (mean.shape[0], 0, 0)) if fits and stored.few and mean.shape[0] <= SHORT else None


class Joint:
    """Pieces, as long as their parameters are the same tensors. What is done in every step is few calls, in C."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)
        self.parameters = tuple(parameter for piece in pieces for parameter in piece.stored.parameters)
        self.means = tuple(piece.mean for piece in pieces)
        self.lie = Lie(self.parameters)
        self.sizes = (ctypes.c_long * (3 * len(pieces)))(*(size for piece in pieces for size in piece.sizes))

    def served(self) -> bool:
        """Whether the library takes them as they are now."""
        return self.lie.unchanged() and untransformed(*self.parameters) and is_there()


class Lie:
    """How tensors lie in memory: others may have been put in their place."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors, self._shapes = tensors, list(map(_shape, tensors))
        self._addresses = ctypes.c_void_p * len(tensors)

    def unchanged(self) -> bool:
        """Whether they have the same shapes, and are in single precision and in order, in the memory of the CPU."""
        tensors = self.tensors
        if list(map(_shape, tensors)) != self._shapes or set(map(_dtype, tensors)) != _SINGLE:
            return False
        return all(map(_is_cpu, tensors)) and all(map(Tensor.is_contiguous, tensors))

    def addresses(self) -> Any:
        """Where they are."""
        return self._addresses(*map(Tensor.data_ptr, self.tensors))


_shape, _dtype, _is_cpu, _SINGLE = attrgetter("shape"), attrgetter("dtype"), attrgetter("is_cpu"), {torch.float32}


def addresses(tensors: Sequence[Tensor | None]) -> Any:
    """Where tensors are; null for those that there are not."""
    found = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(found))(*found)
