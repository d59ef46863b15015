"""Binary networks with eight weights in a byte."""

from __future__ import annotations

import copy
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument
from bayesrule.optim.binary import BinaryOptimizer
from bayesrule.optim.shell import PosteriorOptimizer

BITS, SHAPE, OTHER = "bits:", "shape:", "other:"


@dataclass(frozen=True)
class PackedNetwork:
    """A binary network's numbers: bits of ±1 weights, and everything else as it is.

    Attributes:
        bits: By name, the weights' signs (1 for +1), packed in row-major order.
        shapes: Of those weights.
        others: The remaining entries of the network's ``state_dict``: biases, norm layers and their averages.
    """

    bits: Mapping[str, np.ndarray]
    shapes: Mapping[str, tuple[int, ...]]
    others: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Of all numbers."""
        return sum(array.nbytes for array in (*self.bits.values(), *self.others.values()))

    def weights(self, name: str) -> np.ndarray:
        """One binary weight as −1 and +1, in int8."""
        shape = self.shapes[name]
        signs = np.unpackbits(self.bits[name], count=int(np.prod(shape))).astype(np.int8)
        return (2 * signs - 1).reshape(shape)

    def unpack(self, into: nn.Module) -> nn.Module:
        """A copy of a network of the same architecture, with these weights; the argument is not changed."""
        network = copy.deepcopy(into)
        own = network.state_dict()
        if set(own) != {*self.bits, *self.others}:
            raise InvalidArgument(
                "The packed weights are of another network", got=sorted(set(own) ^ {*self.bits, *self.others})[:5],
                remedy="Give a network of the architecture that was packed.",
            )  # fmt: skip
        found = {name: torch.from_numpy(self.weights(name)) for name in self.bits}
        found |= {name: torch.from_numpy(array.copy()) for name, array in self.others.items()}
        network.load_state_dict({name: value.to(own[name]) for name, value in found.items()})
        return network

    def save(self, path: str | Path) -> None:
        """As an ``.npz`` of plain arrays."""
        arrays = {f"{BITS}{name}": array for name, array in self.bits.items()}
        arrays |= {f"{SHAPE}{name}": np.array(shape, dtype=np.int64) for name, shape in self.shapes.items()}
        arrays |= {f"{OTHER}{name}": array for name, array in self.others.items()}
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | Path) -> PackedNetwork:
        """What `save` wrote; nothing is unpickled."""
        found = _arrays(path)

        def of(prefix: str) -> dict[str, np.ndarray]:
            return {key.removeprefix(prefix): array for key, array in found.items() if key.startswith(prefix)}

        shapes = {name: tuple(int(size) for size in shape.ravel()) for name, shape in of(SHAPE).items()}
        packed = cls(of(BITS), shapes, of(OTHER))
        if not packed._consistent() or len(found) != len(packed.bits) + len(shapes) + len(packed.others):
            raise _not_packed(path)
        return packed

    def _consistent(self) -> bool:
        """Whether there are as many bits as the shapes ask for."""
        return set(self.bits) == set(self.shapes) and all(
            bits.dtype == np.uint8 and bits.shape == (-(-math.prod(self.shapes[name]) // 8),)
            for name, bits in self.bits.items()
        )


def _arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All of an ``.npz``; what else numpy may find is refused without its advice to unpickle it."""
    with Path(path).open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise _not_packed(path)
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return {key: arrays[key] for key in arrays.files}
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            raise _not_packed(path) from None


def _not_packed(path: str | Path) -> InvalidArgument:
    return InvalidArgument(
        "This file is not a packed network", got=path, remedy="Give one that pack_binary(optimizer).save(path) wrote."
    )


def pack_binary(optimizer: PosteriorOptimizer) -> PackedNetwork:
    """The most probable network of a `BayesBiNN` or `STE`, ``sign λ``, at one bit for each binary weight."""
    if not isinstance(optimizer, BinaryOptimizer):
        raise InvalidArgument(
            "Only binary weights can be packed into bits", got=type(optimizer).__name__,
            remedy="Train by br.optim.BayesBiNN or br.optim.STE.",
        )  # fmt: skip
    state, binary = optimizer.model.state_dict(), _binary_names(optimizer)
    bits = {name: np.packbits(_array(state[name]).ravel() > 0) for name in binary}
    shapes = {name: tuple(state[name].shape) for name in binary}
    return PackedNetwork(bits, shapes, {name: _array(value) for name, value in state.items() if name not in binary})


def _binary_names(optimizer: BinaryOptimizer) -> set[str]:
    """Every name under which the network's state has a binary weight: a tied one has several."""
    parts = {part.name for group in optimizer.groups.values() for part in group.parts}
    own = {id(optimizer.trained[name]) for name in parts}
    named = optimizer.model.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if id(parameter) in own}


def _array(value: Tensor) -> np.ndarray:
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
