"""Small matrices and vectors of a model that are handed to code of our own together, by their addresses."""

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
from bayesrule.kernels.operators import has_kernels
from bayesrule.kernels.tap import StoredParameters

MOST_ON_GPU = 1 << 26
"""Entries of a matrix there: all draws of a pass, and their gradients, are in memory at once."""
LONGEST_ON_GPU = 1 << 16
"""Of a vector."""


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

    @property
    def is_single_and_in_order(self) -> bool:
        """Whether its parameters are in single precision and contiguous."""
        return all(each.dtype == torch.float32 and each.is_contiguous() for each in self.stored.parameters)


def ktied_piece(stored: StoredParameters) -> Piece | None:
    """A k-tied matrix; None where it is better served apart."""
    mean, fan_in_logs, fan_out_logs = stored.parameters
    sizes = fan_in, fan_out, rank = fan_in_logs.shape[0], fan_out_logs.shape[0], fan_in_logs.shape[1]
    fits = mean.shape[0] == fan_out and mean.numel() == fan_in * fan_out > 0 and fan_out_logs.shape[1] == rank
    few = mean.numel() <= MOST_ON_GPU if has_kernels(mean) else stored.few
    return Piece(stored, sizes) if fits and few and rank <= MOST_COLUMNS else None


def diagonal_piece(stored: StoredParameters) -> Piece | None:
    """A short vector of independent entries."""
    mean, log_std = stored.parameters
    fits = mean.ndim == 1 and mean.shape == log_std.shape and mean.numel() > 0
    few = mean.numel() <= LONGEST_ON_GPU if has_kernels(mean) else stored.few and mean.numel() <= SHORT
    return Piece(stored, (mean.shape[0], 0, 0)) if fits and few else None


class Joint:
    """Pieces, as long as their parameters are the same tensors. What is done in every step is few calls, in C."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = tuple(pieces)
        self.parameters = tuple(parameter for piece in pieces for parameter in piece.stored.parameters)
        self.means = tuple(piece.mean for piece in pieces)
        self.lie = Lie(self.parameters)
        self.sizes = (ctypes.c_long * (3 * len(pieces)))(*(size for piece in pieces for size in piece.sizes))

    @property
    def device(self) -> torch.device:
        """Of all of them."""
        return self.lie.device

    def served(self) -> bool:
        """Whether there is code that takes them as they are now."""
        if not (self.lie.unchanged() and untransformed(*self.parameters)):
            return False
        return is_there() if self.device.type == "cpu" else _runs_kernels(self.device)


def _runs_kernels(device: torch.device) -> bool:
    watched = torch._C._len_torch_dispatch_stack() > 0
    return device.type == "cuda" and device.index == torch.cuda.current_device() and not watched


class Lie:
    """How tensors lie in memory: others may have been put in their place."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors, self._shapes, self.device = tensors, list(map(_shape, tensors)), tensors[0].device
        self._devices, self._addresses = {self.device}, ctypes.c_void_p * len(tensors)

    def unchanged(self) -> bool:
        """Whether they have the same shapes, and are in single precision and in order, in the same memory."""
        tensors = self.tensors
        if list(map(_shape, tensors)) != self._shapes or set(map(_dtype, tensors)) != _SINGLE:
            return False
        return set(map(_device, tensors)) == self._devices and all(map(Tensor.is_contiguous, tensors))

    def addresses(self) -> Any:
        """Where they are."""
        return self._addresses(*map(Tensor.data_ptr, self.tensors))


_shape, _dtype, _device, _SINGLE = attrgetter("shape"), attrgetter("dtype"), attrgetter("device"), {torch.float32}


def addresses(tensors: Sequence[Tensor | None]) -> Any:
    """Where tensors are; null for those that there are not."""
    found = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    return (ctypes.c_void_p * len(found))(*found)
