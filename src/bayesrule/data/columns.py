"""What a column is: numbers or text, what counts as missing, and what cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from bayesrule.errors import InvalidArgument

Kind = Literal["number", "text"]
Cells = Float[np.ndarray, " rows"] | list[str]
"""One column: numbers with NaN for what is missing, or text with ``""`` for it."""

MISSING = frozenset(
    [
        *("", "?", "na", "n/a", "#n/a", "#na", "#n/a n/a", "<na>", "nan", "-nan", "null", "none", "nil", "missing"),
        *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
    ]
)
"""The spellings of a missing value, in lower case and without the blanks around them."""

LARGEST = 1e100
"""Beyond it a number is refused as infinities are: its square, which every spread needs, would soon overflow."""


class BadTable(InvalidArgument):
    """A table cannot be read or used as it is."""


def is_missing(cell: str) -> bool:
    """Whether a cell's text spells a missing value."""
    return cell.strip().lower() in MISSING


def as_numbers(cells: Cells) -> Float[np.ndarray, " rows"] | None:
    """The cells as numbers, NaN where one is missing; None if any of the others is not a number."""
    if isinstance(cells, np.ndarray):
        return cells
    if "_" in "".join(cells):  # Python reads 1_000 as a number; in a table it is a code
        return None
    try:
        return np.array([float(cell) for cell in cells], dtype=np.float64)
    except ValueError:
        pass
    try:
        # float() takes fewer characters for blanks than strip(), and so than `as_text` and `is_missing`.
        return np.array([np.nan if is_missing(cell) else float(cell.strip()) for cell in cells], dtype=np.float64)
    except ValueError:
        return None


def as_text(cells: Cells) -> list[str]:
    """The cells as text without the blanks around it, ``""`` where one is missing."""
    if isinstance(cells, np.ndarray):
        return ["" if np.isnan(value) else format_number(value) for value in cells]
    return ["" if is_missing(cell) else cell.strip() for cell in cells]


def format_number(value: float) -> str:
    """A number as the text a category gets from it: whole numbers without a point."""
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def first_unusable(numbers: Float[np.ndarray, " rows"]) -> int | None:
    """Where the first infinite (or too large) number lies, if anywhere."""
    found = np.flatnonzero(np.abs(numbers) > LARGEST)
    return int(found[0]) if found.size else None


def first_text(cells: Sequence[str]) -> int:
    """Where the first cell lies that is neither missing nor a number; the number of cells if there is none."""
    return next((place for place, cell in enumerate(cells) if as_numbers([cell]) is None), len(cells))


def cells_of(series: pd.Series) -> Cells:
    """A column of a data frame, taken at its word: numbers by their type, and everything else as text.

    Booleans, categories and dates are text; so are strings that look like numbers (reading a file is what turns those
    into numbers). A column of Python objects is numbers when each of them is one.
    """
    from pandas.api import types

    kind = series.dtype
    if types.is_numeric_dtype(kind) and not types.is_bool_dtype(kind) and not types.is_complex_dtype(kind):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    values, missing = series.tolist(), series.isna().tolist()
    if types.is_object_dtype(kind) and all(
        gone or _is_number(value) for value, gone in zip(values, missing, strict=True)
    ):
        pairs = zip(values, missing, strict=True)
        return np.array([np.nan if gone else float(value) for value, gone in pairs], dtype=np.float64)
    return ["" if gone else _text_of(value) for value, gone in zip(values, missing, strict=True)]


def _is_number(value: object) -> bool:
    from decimal import Decimal

    return isinstance(value, int | float | Decimal | np.integer | np.floating) and not isinstance(value, bool)


def _text_of(value: object) -> str:
    return format_number(float(value)) if _is_number(value) else as_text([str(value)])[0]  # type: ignore[arg-type]


def named_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its column names as text, each of them once."""
    names = [str(name) for name in frame.columns]
    refuse_repeated(names, "The data frame")
    return frame.set_axis(names, axis=1)


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Raise if two columns have one name."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise BadTable(
            f"{where} has more than one column of the same name",
            got=", ".join(map(repr, repeated[:5])),
            remedy="Rename or remove the repeated columns.",
        )
