"""Data sets held as tensors, with a training, a validation and a test part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Int64, Shaped, UInt8
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """Examples and their classes, as stored: images are bytes, texts are token numbers.

    Attributes:
        train_x: Examples to train on.
        train_y: Their classes, from 0.
        test_x: Examples to report on.
        test_y: Their classes.
        classes: How many there are.
        name: Of the set.
        valid_x: Examples to choose by; none unless `validation_split` has set some aside.
        valid_y: Their classes.
        synthetic: Whether it is a stand-in of the true shape, whose numbers mean nothing.
    """

    train_x: Shaped[Tensor, " train *example"]
    train_y: Int64[Tensor, " train"]
    test_x: Shaped[Tensor, " test *example"]
    test_y: Int64[Tensor, " test"]
    classes: int
    name: str
    valid_x: Shaped[Tensor, "valid ..."] = field(default_factory=lambda: torch.empty(0))
    valid_y: Int64[Tensor, " valid"] = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    synthetic: bool = False

    def __post_init__(self) -> None:
        if len(self.valid_x) == 0:  # an absent part has the shape of the others, so that it can be mapped like them
            object.__setattr__(self, "valid_x", self.train_x[:0])
        for part, x, y in self._parts():
            if len(x) != len(y) or x.shape[1:] != self.train_x.shape[1:]:
                raise ShapeMismatch(
                    f"The {part} part of {self.name} must have a class for each example, and examples of one shape",
                    got=f"{tuple(x.shape)} and {tuple(y.shape)}; training examples {tuple(self.train_x.shape)}",
                )
            if y.numel() and not y.is_meta and (int(y.min()) < 0 or int(y.max()) >= self.classes):
                raise InvalidArgument(
                    f"The classes of {self.name} must be 0 … {self.classes - 1}",
                    got=f"{int(y.min())} … {int(y.max())} in the {part} part",
                    remedy="The file is damaged or belongs to another set: get it again.",
                )

    def _parts(self) -> list[tuple[str, Tensor, Tensor]]:
        return [
            ("train", self.train_x, self.train_y),
            ("valid", self.valid_x, self.valid_y),
            ("test", self.test_x, self.test_y),
        ]

    def validation_split(self, count: int) -> LabelledSet:
        """The set with its *last* ``count`` training examples, in their order, as validation part."""
        if len(self.valid_y):
            raise InvalidArgument(f"{self.name} has a validation part already", got=f"{len(self.valid_y)} examples")
        if not 0 < count < len(self.train_y):
            raise InvalidArgument(
                "A validation part must leave something to train on",
                got=f"{count} of the {len(self.train_y)} training examples of {self.name}",
                remedy="Ask for fewer, and at least one.",
            )
        kept = len(self.train_y) - count
        return replace(
            self,
            train_x=self.train_x[:kept],
            train_y=self.train_y[:kept],
            valid_x=self.train_x[kept:],
            valid_y=self.train_y[kept:],
        )

    def first(self, *, train: int | None = None, valid: int | None = None, test: int | None = None) -> LabelledSet:
        """The set with only the first so many examples of each part; None keeps a part whole."""
        for (part, _, y), count in zip(self._parts(), (train, valid, test), strict=True):
            if count is not None and not 0 <= count <= len(y):
                raise InvalidArgument(f"The {part} part of {self.name} has {len(y)} examples", got=f"first({count})")
        return replace(
            self,
            train_x=self.train_x[:train],
            train_y=self.train_y[:train],
            valid_x=self.valid_x[:valid],
            valid_y=self.valid_y[:valid],
            test_x=self.test_x[:test],
            test_y=self.test_y[:test],
        )

    def map_x(self, function: Callable[[Tensor], Tensor]) -> LabelledSet:
        """The set with a function, such as `symmetric_interval`, applied to the examples of each part."""
        return replace(
            self, train_x=function(self.train_x), valid_x=function(self.valid_x), test_x=function(self.test_x)
        )

    def to(self, device: torch.device | str) -> LabelledSet:
        """The set on a device."""
        train_y, valid_y, test_y = (y.to(device) for _, _, y in self._parts())
        return replace(self.map_x(lambda x: x.to(device)), train_y=train_y, valid_y=valid_y, test_y=test_y)


@dataclass(frozen=True, eq=False)
class UnlabelledSet:
    """Examples without classes, to model their density.

    Attributes:
        train: To train on.
        valid: To choose by.
        test: To report on.
        name: Of the set.
        synthetic: Whether it is a stand-in of the true shape, whose numbers mean nothing.
    """

    train: UInt8[Tensor, " train *example"]
    valid: UInt8[Tensor, " valid *example"]
    test: UInt8[Tensor, " test *example"]
    name: str
    synthetic: bool = False

    def to(self, device: torch.device | str) -> UnlabelledSet:
        """The set on a device."""
        return replace(self, train=self.train.to(device), valid=self.valid.to(device), test=self.test.to(device))
