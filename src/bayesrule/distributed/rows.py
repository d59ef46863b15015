"""Which rows of a batch are whose."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.distributed.world import World
from bayesrule.errors import InvalidArgument, ShapeMismatch


@dataclass(frozen=True)
class Rows:
    """Rows ``first, …, first + count − 1`` of a batch of ``total``."""

    first: int
    count: int
    total: int

    @classmethod
    def of(cls, total: int, world: World) -> Rows:
        """This process's part, as even as can be; all take a batch whole that is too small for everyone to have a row.

        The mean of equal messages is the message, so that such a batch counts as it should.
        """
        if total < world.size:
            return cls(0, total, total)
        share, rest = divmod(total, world.size)
        first = world.rank * share + min(world.rank, rest)
        return cls(first, share + (world.rank < rest), total)

    def fewest(self, world: World) -> int:
        """The rows of the process that has fewest."""
        return self.total if self.total < world.size else self.total // world.size

    def even(self, count: int, world: World) -> bool:
        """Whether so many parts are of one size, in every process."""
        most = self.total if self.total < world.size else -(-self.total // world.size)
        return not (self.fewest(world) % count or most % count)

    def parts(self, count: int) -> list[Rows]:
        """These rows as so many consecutive parts, as even as can be."""
        if not 1 <= count <= self.count:
            raise InvalidArgument(f"A batch is cut into at least 1 part and at most {self.count}, its rows", got=count)
        pieces = [Rows.of(self.count, World(number, count)) for number in range(count)]
        return [Rows(self.first + piece.first, piece.count, self.total) for piece in pieces]

    def cut(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """These rows of every tensor."""
        wrong = [tuple(tensor.shape) for tensor in tensors if tensor.ndim == 0 or len(tensor) != self.total]
        if wrong:
            raise ShapeMismatch(f"All tensors of a batch have its {self.total} rows", got=wrong)
        return tuple(tensor[self.first : self.first + self.count] for tensor in tensors)
