"""Parquet files, read a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesrule.data.columns import BadTable, Cells, refuse_repeated
from bayesrule.data.csv_files import Chunk

MAGIC = b"PAR1"


@dataclass(frozen=True)
class ParquetTable:
    """A parquet file, its schema read and checked; a row index that pandas stored in it is left out.

    Attributes:
        path: The file.
        names: Of the columns.
    """

    path: Path
    names: tuple[str, ...]
    place = "row"

    @classmethod
    def open(cls, path: Path) -> ParquetTable:
        """Read the schema."""
        with _readable(path) as file:
            stored = file.schema_arrow
            index = [name for name in (stored.pandas_metadata or {}).get("index_columns", []) if isinstance(name, str)]
            names = [name for name in stored.names if name not in index]
        refuse_repeated(names, str(path))
        if not names:
            raise BadTable(f"{path} has no columns", remedy="Give a table with at least two.")
        return cls(path, tuple(names))

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """All rows, at most ``rows`` at a time."""
        done = 0
        with _readable(self.path) as file:
            for batch in file.iter_batches(batch_size=rows, columns=list(self.names)):
                cells = {name: _cells(batch.column(name)) for name in self.names}
                yield Chunk(cells, list(range(done + 1, done + 1 + batch.num_rows)))
                done += batch.num_rows


@contextmanager
def _readable(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            yield file
    # What a damaged file raises depends on where the damage lies: broken pages, metadata that is not JSON, bad UTF-8.
    except (ArrowException, OSError, ValueError, TypeError, KeyError, MemoryError) as error:
        if isinstance(error, BadTable):
            raise
        raise BadTable(
            f"{path} is not a readable parquet file",
            got=(str(error).splitlines() or [type(error).__name__])[0][:120],
            remedy="Write it again, or save the table as CSV.",
        ) from error


def _cells(column: Any) -> Cells:
    """Numbers by their stored type, and everything else as text, so that all pieces of a file agree."""
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        return _cells(column.dictionary_decode())
    if types.is_null(kind):
        return np.full(len(column), np.nan)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return np.array(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
    return ["" if value is None else str(value) for value in column.to_pylist()]
