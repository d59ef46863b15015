"""What a compression did, weight by weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bayesrule.errors import InvalidArgument
from bayesrule.text_table import aligned


@dataclass(frozen=True)
class CompressedWeight:
    """One row of the table.

    Attributes:
        name: The weight's name, or its group's.
        shape: Fan-in and fan-out.
        numbers_before: Trainable numbers before, means included.
        numbers_after: And after.
        kl_before: Its KL to the prior before.
        kl_after: And after.
        rank: Of its standard deviations now; None where they are as they were.
        explained: Share of the squared standard deviations that the truncation keeps.
        floor: The smallest standard deviation it can have; 0 where there is no floor.
        touched: Entries that the floor raised.
        nonpositive: Those of them that the truncation had left at or below zero.
        note: Why it was kept.
    """

    name: str
    shape: tuple[int, ...]
    numbers_before: int
    numbers_after: int
    kl_before: float
    kl_after: float
    rank: int | None = None
    explained: float = 1.0
    floor: float = 0.0
    touched: int = 0
    nonpositive: int = 0
    note: str = ""


@dataclass(frozen=True)
class Compression:
    """Every weight, and the whole model before and after.

    Attributes:
        rows: The weights; biases are not compressed and have no row.
        numbers_before: Trainable numbers of the whole model before.
        numbers_after: And after.
        kl_before: The KL of the whole model before.
        kl_after: And after.
    """

    rows: tuple[CompressedWeight, ...]
    numbers_before: int
    numbers_after: int
    kl_before: float
    kl_after: float

    def __iter__(self) -> Iterator[CompressedWeight]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> CompressedWeight:
        for row in self.rows:
            if row.name == name:
                return row
        raise InvalidArgument(f"No weight {name!r} was compressed or kept", got=[row.name for row in self.rows])

    @property
    def touched(self) -> int:
        """Entries that a floor raised."""
        return sum(row.touched for row in self.rows)

    def __str__(self) -> str:
        numbers, kls = ("numbers", "after"), ("KL", "after")
        header = ("weight", "shape", "rank", *numbers, "explained", "floor", "touched", "≤ 0", *kls, "note")
        numbers, kls = _pair(self.numbers_before, self.numbers_after, ","), _pair(self.kl_before, self.kl_after, ",.1f")
        whole = ("whole model", "", "", *numbers, "", "", f"{self.touched:,}", "", *kls, "biases included")
        return aligned(header, *map(_cells, self.rows), whole)


def _cells(row: CompressedWeight) -> tuple[str, ...]:
    changed = row.rank is not None
    return (
        row.name,
        "×".join(map(str, row.shape)),
        str(row.rank) if changed else "kept",
        *_pair(row.numbers_before, row.numbers_after, ","),
        f"{100 * row.explained:.3f} %" if changed else "",
        f"{row.floor:g}" if changed else "",
        f"{row.touched:,}" if changed else "",
        f"{row.nonpositive:,}" if changed else "",
        *_pair(row.kl_before, row.kl_after, ",.1f"),
        row.note,
    )


def _pair(before: float, after: float, form: str) -> tuple[str, str]:
    return format(before, form), format(after, form)
