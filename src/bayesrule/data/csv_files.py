"""Comma- and tab-separated text, read strictly and a piece at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bayesrule.data.columns import BadTable, Cells, as_numbers, refuse_repeated

SEPARATORS = (",", ";", "\t", "|")
LONGEST_LINE = 1 << 24  # bytes; a binary file may have no line end at all, and memory must stay bounded


@dataclass(frozen=True)
class Chunk:
    """Some consecutive rows of a file.

    Attributes:
        cells: By column name.
        places: Where each row lies in the file, as its reader counts: lines or rows.
    """

    cells: dict[str, Cells]
    places: list[int]


@dataclass(frozen=True)
class CSVFile:
    """A file of separated values, its header read and checked.

    Attributes:
        path: The file.
        separator: Between two cells.
        names: Of the columns; one without a name is called as pandas calls it, ``Unnamed: 0``.
    """

    path: Path
    separator: str
    names: tuple[str, ...]
    place = "line"

    @classmethod
    def open(cls, path: Path) -> CSVFile:
        """Find the separator and read the header."""
        separator = "\t" if path.suffix.lower() == ".tsv" else _separator(path)
        try:
            header = next(_rows(path, separator))[1]
        except StopIteration:
            raise BadTable(f"{path} is empty", remedy="Give a file with a header line and rows of data.") from None
        names = [name.strip() or f"Unnamed: {place}" for place, name in enumerate(header)]
        refuse_repeated(names, str(path))
        _refuse_numbers(names, path)
        return cls(path, separator, tuple(names))

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """All rows below the header, at most ``rows`` at a time."""
        lines = islice(_rows(self.path, self.separator), 1, None)
        while piece := [self._checked(line, row) for line, row in islice(lines, rows)]:
            columns = zip(*(row for _, row in piece), strict=True)
            cells: dict[str, Cells] = {name: list(column) for name, column in zip(self.names, columns, strict=True)}
            yield Chunk(cells, [line for line, _ in piece])

    def _checked(self, line: int, row: list[str]) -> tuple[int, list[str]]:
        if len(row) != len(self.names):
            raise BadTable(
                f"Line {line} of {self.path} has {len(row)} cells, but the header names {len(self.names)} columns",
                got=self.separator.join(row)[:60],
                remedy="Give every row one cell per column; put quotes around a cell that holds the separator.",
            )
        return line, row


def _rows(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The number of its last line, and the cells, of each row that is not blank."""
    with path.open("rb") as file:
        reader = csv.reader(_lines(file, path), delimiter=separator, strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise BadTable(
                f"Line {reader.line_num} of {path} is not well-formed",
                got=error,
                remedy="Close every quote, double a quote inside quotes, and end lines by a line feed.",
            ) from error


def _lines(file: Iterator[bytes], path: Path) -> Iterator[str]:
    number = 0
    while raw := file.readline(LONGEST_LINE):  # type: ignore[attr-defined]
        number += 1
        raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
        if len(raw) >= LONGEST_LINE or b"\0" in raw:
            reason = "a zero byte" if b"\0" in raw else f"no line end within {LONGEST_LINE} bytes"
            raise BadTable(
                f"{path} is not a text file", got=f"{reason} in line {number}", remedy="Save the table as CSV in UTF-8."
            )
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadTable(
                f"{path} is not encoded in UTF-8",
                got=f"byte 0x{raw[error.start]:02x} as byte {error.start + 1} of line {number}",
                remedy="Save the file again as UTF-8 (from Latin-1: iconv -f latin1 -t utf-8).",
            ) from error


def _separator(path: Path) -> str:
    """The separator by which the header and the first row have the same, and the largest, number of cells."""

    def columns(separator: str) -> int:
        counts = {len(row) for _, row in islice(_rows(path, separator), 2)}
        return max(counts) if len(counts) == 1 and counts != {1} else 0  # one cell: not the separator

    found = {}
    for separator in SEPARATORS:
        try:
            found[separator] = columns(separator)
        except BadTable:
            found[separator] = 0
    return max(SEPARATORS, key=found.__getitem__)


def _refuse_numbers(names: list[str], path: Path) -> None:
    numbers = as_numbers(names)
    counts = (list(range(len(names))), list(range(1, len(names) + 1)))  # the names a matrix without names is given
    if numbers is not None and len(names) > 1 and numbers.tolist() not in counts:
        raise BadTable(
            f"{path} has no header: its first line is all numbers",
            got=", ".join(names)[:60],
            remedy="Add a first line with the names of the columns.",
        )
