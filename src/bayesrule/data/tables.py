"""Tables from files: read whole, or a piece at a time in constant memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from bayesrule.data.columns import BadTable, Kind, as_numbers, as_text, first_text, first_unusable
from bayesrule.data.csv_files import Chunk, CSVFile
from bayesrule.data.parquet_files import MAGIC, ParquetTable

EXTENSIONS = (".csv", ".tsv", ".txt", ".parquet", ".pq")
ROWS_AT_ONCE = 10_000
MINIMUM_ROWS = 3
_FOREIGN = {
    b"PK\x03\x04": "a zip archive, or a workbook of a spreadsheet program",
    b"\x1f\x8b": "a file compressed by gzip",
    b"\xd0\xcf\x11\xe0": "a workbook of an old spreadsheet program",
    b"\xff\xfe": "text encoded in UTF-16",
    b"\xfe\xff": "text encoded in UTF-16",
    b"\x89HDF": "an HDF5 file",
    b"%PDF": "a PDF document",
}


def read_table(
    path: str | os.PathLike[str], *, kinds: Mapping[str, Kind] | None = None, at_least: int = MINIMUM_ROWS
) -> pd.DataFrame:
    """A CSV, TSV or parquet file as a data frame of float64 and text columns, NaN where a value is missing.

    A column is numbers when every value that is not missing reads as one, and text otherwise.

    Args:
        path: The file. Text is UTF-8, separated by commas, semicolons, tabs or bars, with a header line.
        kinds: What some columns must be: ``"text"`` keeps codes such as ``007`` as they are written, ``"number"``
            refuses text.
        at_least: How many rows are needed.
    """
    pieces = list(iterate_table(path, kinds=kinds, at_least=at_least))
    return pd.concat(pieces) if len(pieces) > 1 else pieces[0]


def iterate_table(
    path: str | os.PathLike[str],
    *,
    rows: int = ROWS_AT_ONCE,
    kinds: Mapping[str, Kind] | None = None,
    at_least: int = 1,
) -> Iterator[pd.DataFrame]:
    """The same table a piece at a time; all pieces together equal `read_table`, their indices run on.

    The file is read twice: the first pass finds each column's kind and every fault, so that a caller who has seen one
    piece will see them all.

    Args:
        path: The file.
        rows: How many at a time.
        kinds: As for `read_table`; for prediction, `Encoder.kinds`.
        at_least: How many rows the file must have.
    """
    if rows < 1:
        raise BadTable("A table is read at least one row at a time", got=rows)
    source = _open(Path(path))
    found = _survey(source, rows, kinds or {}, at_least)
    return _frames(source, rows, found)


def _open(path: Path) -> CSVFile | ParquetTable:
    if path.is_dir():
        raise BadTable(f"{path} is a folder, not a file", remedy="Name the file in it.")
    if not path.is_file():
        raise BadTable(f"There is no file {path}", remedy="Check the name and the folder.")
    try:
        with path.open("rb") as file:
            start = file.read(4)
        return _recognise(path, start)
    except OSError as error:
        raise BadTable(
            f"{path} cannot be read", got=error.strerror or error, remedy="Check who may read it."
        ) from error


def _recognise(path: Path, start: bytes) -> CSVFile | ParquetTable:
    if not start:
        raise BadTable(f"{path} is empty", remedy="Give a file with a header line and rows of data.")
    for magic, description in _FOREIGN.items():
        if start.startswith(magic):
            raise BadTable(f"{path} is {description}", remedy="Save the table as CSV in UTF-8, or as parquet.")
    extension = path.suffix.lower()
    if extension not in EXTENSIONS:
        raise BadTable(
            f"{path} has no known extension", got=extension or "none", remedy=f"Known: {', '.join(EXTENSIONS)}."
        )
    if start == MAGIC or extension in (".parquet", ".pq"):
        return ParquetTable.open(path)
    return CSVFile.open(path)


def _survey(source: CSVFile | ParquetTable, rows: int, kinds: Mapping[str, Kind], at_least: int) -> dict[str, Kind]:
    found: dict[str, Kind] = {name: "text" if kinds.get(name) == "text" else "number" for name in source.names}
    unusable: dict[str, tuple[int, float]] = {}
    count = 0
    for chunk in source.chunks(rows):
        count += len(chunk.places)
        for name in [name for name, kind in found.items() if kind == "number"]:
            numbers = as_numbers(chunk.cells[name])
            if numbers is None:
                if kinds.get(name) == "number":
                    raise _text_among_numbers(source, chunk, name)
                found[name] = "text"
            elif (place := first_unusable(numbers)) is not None:
                unusable.setdefault(name, (chunk.places[place], float(numbers[place])))
    for name, (place, value) in unusable.items():
        if found[name] == "number":  # text after all: then "inf" was a word
            raise _unusable(source, name, place, value)
    if count < at_least or count == 0:
        raise _too_few(source.path, count, max(at_least, 1))
    return found


def _frames(source: CSVFile | ParquetTable, rows: int, kinds: Mapping[str, Kind]) -> Iterator[pd.DataFrame]:
    done = 0
    for chunk in source.chunks(rows):
        index = pd.RangeIndex(done, done + len(chunk.places))
        yield pd.DataFrame({name: _series(source.path, chunk, name, kinds[name], index) for name in source.names})
        done += len(chunk.places)


def _series(path: Path, chunk: Chunk, name: str, kind: Kind, index: pd.RangeIndex) -> pd.Series:
    if kind == "text":
        return pd.Series([cell or None for cell in as_text(chunk.cells[name])], index, dtype="str")
    numbers = as_numbers(chunk.cells[name])
    if numbers is None or first_unusable(numbers) is not None:
        raise BadTable(
            f"{path} changed while it was read", got=f"other values in column {name!r}", remedy="Read it again."
        )
    return pd.Series(np.ascontiguousarray(numbers), index)


def _text_among_numbers(source: CSVFile | ParquetTable, chunk: Chunk, name: str) -> BadTable:
    cells = as_text(chunk.cells[name])
    place = first_text(cells)
    return BadTable(
        f"Column {name!r} of {source.path} must hold numbers, as it did in training",
        got=f"{cells[place]!r} in {source.place} {chunk.places[place]}",
        remedy="Correct the value, or leave it empty if it is missing.",
    )


def _unusable(source: CSVFile | ParquetTable, name: str, place: int, value: float) -> BadTable:
    return BadTable(
        f"Column {name!r} of {source.path} holds a number that is infinite or too large",
        got=f"{value} in {source.place} {place}",
        remedy="Correct the value, or leave it empty if it is missing.",
    )


def _too_few(path: Path, count: int, needed: int) -> BadTable:
    got = "only a header" if count == 0 else f"{count} row{'s' if count > 1 else ''}"
    return BadTable(f"{path} has too few rows: at least {needed} are needed", got=got, remedy="Give more data.")
