"""What a family declares of its natural parameter: the blocks, their shapes, and the open set Ω they live in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam.coordinates import Natural, require_same_names
from bayesrule.expfam.domains import Domain, Real
from bayesrule.random import NoiseSource


@dataclass(frozen=True)
class Block:
    """One block of λ: the names of its sizes, its domain, and whether it is symmetric.

    Equal names are equal sizes; ``"classes-1"`` is one less than ``"classes"``.
    """

    shape: tuple[str, ...]
    domain: Domain = Real()  # noqa: RUF009  (frozen, without state)
    symmetric: bool = False

    def project(self, value: Tensor) -> Tensor:
        """The nearest tensor of the block's linear space: the symmetric part, for a symmetric block."""
        return (value + value.mT) / 2 if self.symmetric else value


class ParameterSpace(ABC):
    """The space of λ and, in it, Ω: where A(λ) is finite."""

    blocks: Mapping[str, Block]

    @property
    @abstractmethod
    def description(self) -> str:
        """How an error message completes "a natural parameter must have …"."""

    @abstractmethod
    def contains(self, natural: Natural) -> Tensor:
        """Whether each member of the batch has λ ∈ Ω."""

    @abstractmethod
    def from_normal(self, noise: Natural) -> Natural:
        """Turn standard normal noise into well-conditioned points of Ω."""

    @property
    @final
    def event_dims(self) -> dict[str, int]:
        """How many trailing dimensions of each block belong to one member."""
        return {name: len(block.shape) for name, block in self.blocks.items()}

    @final
    def project(self, natural: Natural) -> Natural:
        """The symmetric part of every symmetric block: a gradient by autograd may leave that space."""
        return Natural(**{name: self.blocks[name].project(value) for name, value in natural.items})

    @final
    def random(
        self, noise: NoiseSource, like: Tensor, batch_shape: tuple[int, ...], sizes: Mapping[str, int]
    ) -> Natural:
        """Random points of Ω; sizes that no block has are ignored."""
        missing = {_parse(size)[0] for block in self.blocks.values() for size in block.shape} - set(sizes)
        if missing:
            raise InvalidArgument(f"a natural parameter needs the sizes {sorted(missing)}", got=dict(sizes))
        shapes = {name: tuple(_length(size, sizes) for size in block.shape) for name, block in self.blocks.items()}
        return self.from_normal(
            Natural(**{name: noise(batch_shape + shape, "normal", like) for name, shape in shapes.items()})
        )

    @final
    def check(self, natural: Natural, sizes: Mapping[str, int], owner: str) -> None:
        """Raise unless the blocks of λ fit these shapes, the given ``sizes`` and each other, and λ ∈ Ω."""
        require_same_names(self.blocks, natural.names)
        self._check_shapes(natural, sizes, owner)
        inside = self.contains(natural)
        if not inside.all():
            raise InvalidArgument(
                f"a natural parameter of {owner} must have {self.description}",
                got={name: value[~inside][0] for name, value in natural.items},
                remedy="If an update left the family, take a smaller step or a positive curvature.",
            )

    def _check_shapes(self, natural: Natural, sizes: Mapping[str, int], owner: str) -> None:
        known, batches = dict(sizes), set()
        for name, block in self.blocks.items():
            shape = tuple(natural[name].shape)
            first = max(len(shape) - len(block.shape), 0)
            event = shape[first:]
            batches.add(shape[:first])
            fits = len(event) == len(block.shape) and all(
                known.setdefault(_parse(size)[0], length + _parse(size)[1]) == length + _parse(size)[1]
                for size, length in zip(block.shape, event, strict=True)
            )
            if not fits or len(batches) > 1:
                wanted = {name: f"({', '.join(('*batch', *block.shape))})" for name, block in self.blocks.items()}
                raise ShapeMismatch(
                    f"the blocks of a natural parameter of {owner} must have the shapes {wanted}"
                    + (f" with {dict(sizes)}" if sizes else ""),
                    got={name: tuple(value.shape) for name, value in natural.items},
                )


class Blockwise(ParameterSpace):
    """Ω is a product: each block has its own domain."""

    def __init__(self, **blocks: Block) -> None:
        self.blocks = blocks

    @property
    def description(self) -> str:
        """See :class:`ParameterSpace`."""
        return ", ".join(f"{name!r} {block.domain.description}" for name, block in self.blocks.items())

    def contains(self, natural: Natural) -> Tensor:
        """See :class:`ParameterSpace`."""
        inside = [block.domain.contains(natural[name], len(block.shape)) for name, block in self.blocks.items()]
        return torch.stack(inside).all(0)

    def from_normal(self, noise: Natural) -> Natural:
        """See :class:`ParameterSpace`."""
        return Natural(**{name: self.blocks[name].domain.from_normal(value) for name, value in noise.items})


def _parse(size: str) -> tuple[str, int]:
    """``"classes-1"`` is ("classes", 1)."""
    name, _, less = size.partition("-")
    return name, int(less or 0)


def _length(size: str, sizes: Mapping[str, int]) -> int:
    name, less = _parse(size)
    return sizes[name] - less
