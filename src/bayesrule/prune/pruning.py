"""What a pruning did, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.prune.plan import Cut
from bayesrule.text_table import aligned


@dataclass(frozen=True)
class PrunedWeight:
    """One row of the table; rows and columns are those of the weight's fan-in × fan-out matrix.

    Attributes:
        name: The parameter's name before.
        shape: Fan-in and fan-out before.
        weights: How many there were.
        left: How many were not dropped.
        rows_left: Rows with any weight left.
        columns_left: Columns with any weight left.
        shape_after: Fan-in and fan-out now.
        zeros_before: How many were zero before, as in a model that was pruned already.
        nonzero_after: How many are not zero now. Fewer than ``left`` where units were cut: those that nobody reads
            take all their weights along.
        note: Why its units were not cut, if so.
    """

    name: str
    shape: tuple[int, int]
    weights: int
    left: int
    rows_left: int
    columns_left: int
    shape_after: tuple[int, int]
    zeros_before: int
    nonzero_after: int
    note: str = ""


@dataclass(frozen=True)
class Cost:
    """What a network costs and is worth.

    Attributes:
        weights: Entries of the weights that could be pruned, zeros of a dense matrix included.
        nonzero: Those of them that are not zero.
        bytes: Of all parameters and buffers.
        sparse_bytes: The same with the zeros left out, where that is less.
        multiply_adds: Per example; None without an example.
        seconds: Processor time for the example, on one CPU thread; None without one.
        batch: How many inputs the example has.
        measures: On the data given: ``nll``, ``accuracy``, or what the function measured.
    """

    weights: int
    nonzero: int
    bytes: int
    sparse_bytes: int
    multiply_adds: float | None = None
    seconds: float | None = None
    batch: int | None = None
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pruning:
    """Every weight, and the whole network before and after.

    Attributes:
        rows: The weights that could be pruned; biases and point estimates have no row.
        threshold: Weights with ``log(s/M²)`` above it were dropped.
        structure: As asked for.
        before: The network at the posterior mean.
        after: The pruned one.
        masks: By parameter name before, in its layout: True where a weight stays.
        cuts: How layers were cut.
    """

    rows: tuple[PrunedWeight, ...]
    threshold: float
    structure: str
    before: Cost
    after: Cost
    masks: Mapping[str, Tensor] = field(repr=False)
    cuts: tuple[Cut, ...] = field(repr=False)

    def __iter__(self) -> Iterator[PrunedWeight]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> PrunedWeight:
        for row in self.rows:
            if row.name == name:
                return row
        raise InvalidArgument(f"No weight {name!r} was pruned or kept", got=[row.name for row in self.rows])

    @property
    def weights(self) -> int:
        """Weights that could be pruned."""
        return sum(row.weights for row in self.rows)

    @property
    def left(self) -> int:
        """Weights that were not dropped."""
        return sum(row.left for row in self.rows)

    @property
    def sparsity(self) -> float:
        """The share of weights that was dropped."""
        return 1 - self.left / self.weights

    @property
    def zeros_before(self) -> int:
        """Weights that were zero before: the first to be dropped."""
        return sum(row.zeros_before for row in self.rows)

    def __str__(self) -> str:
        header = ("weight", "shape", "after", "weights", "left", "rows left", "columns left", "nonzero after", "note")
        totals = (f"{self.weights:,}", _share(self.left, self.weights))
        rows, columns = (sum(row.shape[axis] for row in self.rows) for axis in (0, 1))
        left = sum(row.rows_left for row in self.rows), sum(row.columns_left for row in self.rows)
        sides = f"{left[0]:,} of {rows:,}", f"{left[1]:,} of {columns:,}"
        whole = ("all", "", "", *totals, *sides, f"{self.after.nonzero:,}", "")
        # The same reason often holds for many layers, and can be long.
        numbers = {note: f"({number})" for number, note in enumerate(_notes(self.rows), 1)}
        below = [f"{number} {note}" for note, number in numbers.items()]
        if self.zeros_before:
            below.append(f"{self.zeros_before:,} weights were zero before.")
        table = aligned(header, *(_cells(row, numbers.get(row.note, "")) for row in self.rows), whole)
        costs = aligned(("", "before", "after"), *_cost_lines(self.before, self.after))
        return "\n".join([table, *below, "", costs])


def _notes(rows: Iterable[PrunedWeight]) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(row.note for row in rows if row.note))


def _cells(row: PrunedWeight, note: str) -> tuple[str, ...]:
    return (
        row.name,
        "×".join(map(str, row.shape)),
        "×".join(map(str, row.shape_after)),
        f"{row.weights:,}",
        _share(row.left, row.weights),
        f"{row.rows_left:,} of {row.shape[0]:,}",
        f"{row.columns_left:,} of {row.shape[1]:,}",
        f"{row.nonzero_after:,}",
        note,
    )


def _share(left: int, weights: int) -> str:
    return f"{left:,} ({100 * left / weights:.1f} %)"


def _cost_lines(before: Cost, after: Cost) -> Iterator[tuple[str, str, str]]:
    yield "weights kept dense", f"{before.weights:,}", f"{after.weights:,}"
    yield "of them not zero", f"{before.nonzero:,}", f"{after.nonzero:,}"
    yield "bytes", f"{before.bytes:,}", f"{after.bytes:,}"
    yield "bytes, zeros left out", f"{before.sparse_bytes:,}", f"{after.sparse_bytes:,}"
    if before.multiply_adds is not None and after.multiply_adds is not None:
        yield "multiply-adds per example", f"{before.multiply_adds:,.0f}", f"{after.multiply_adds:,.0f}"
    if before.seconds is not None and after.seconds is not None:
        yield (
            f"ms for {before.batch} example{'' if before.batch == 1 else 's'}, one CPU thread",
            f"{1e3 * before.seconds:.3g}",
            f"{1e3 * after.seconds:.3g}",
        )
    for name, value in before.measures.items():
        yield name, f"{value:.4f}", f"{after.measures[name]:.4f}"
