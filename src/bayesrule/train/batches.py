"""Batches of data that lie in memory, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch


class TensorBatches:
    """Batches of rows of several tensors, in a new order every time they are read.

    The order comes from torch's global generator on the CPU, so it is the same on every device, and a resumed run
    finds it again. Unlike a `DataLoader` it makes one indexing operation of a batch, which matters on a GPU.

    Args:
        tensors: Inputs and last the targets, examples first, all on one device.
        batch_size: Examples in a batch; the last one of a pass may be smaller.
        shuffle: Whether the order is new every time.
        drop_last: Leave out the last batch of a pass if it is smaller.
    """

    def __init__(self, *tensors: Tensor, batch_size: int, shuffle: bool = True, drop_last: bool = False) -> None:
        if len(tensors) < 2 or len({len(tensor) for tensor in tensors}) != 1:
            raise ShapeMismatch(
                "Inputs and targets must have one row for each example",
                got=[tuple(tensor.shape) for tensor in tensors],
            )
        if batch_size < 1:
            raise InvalidArgument("batch_size must be at least 1", got=batch_size)
        self.tensors, self.batch_size, self.shuffle = tensors, batch_size, shuffle
        self.drop_last = drop_last

    @property
    def examples(self) -> int:
        """How many rows there are."""
        return len(self.tensors[0])

    def __len__(self) -> int:
        whole, rest = divmod(self.examples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = torch.randperm(self.examples) if self.shuffle else torch.arange(self.examples)
        order = order.to(self.tensors[0].device)
        for rows in order.split(self.batch_size)[: len(self)]:
            yield tuple(tensor.index_select(0, rows) for tensor in self.tensors)
