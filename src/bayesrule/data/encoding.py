"""The encoder: fitted on the training table, it turns any table of the same columns into an array of features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float32

from bayesrule.data import config as saved
from bayesrule.data.columns import BadTable, Cells, Kind, as_text, cells_of, named_columns
from bayesrule.data.encoding_report import EncodingReport
from bayesrule.data.features import MOST_CATEGORIES, NumberColumn, TextColumn, finite_numbers
from bayesrule.data.names import nearest

FREE_TEXT_FROM = 20
"""A text column with more distinct values than this, most of them once, is free text or an identifier."""


class Encoded(NamedTuple):
    """Features, and what was noticed in making them."""

    features: Float32[np.ndarray, "rows features"]
    report: EncodingReport


@dataclass(frozen=True)
class Encoder:
    """What training knew of each column.

    Numbers are standardised, with the median for what is missing and a flag beside it. Text (also booleans, dates and
    pandas categories) has one indicator per category; beyond 100 categories the rarer ones share one. Columns that say
    nothing (constant, identifiers, free text) are dropped, and ``dropped`` says why.
    """

    columns: tuple[NumberColumn | TextColumn, ...]
    dropped: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def fit(cls, frame: pd.DataFrame) -> Encoder:
        """Learn from the training rows, without the target's column."""
        frame = named_columns(frame)
        rows = frame.index.tolist()
        fitted = [_fit_column(str(name), cells_of(frame[name]), rows) for name in frame.columns]
        columns = tuple(column for column in fitted if not isinstance(column, str))
        dropped = {str(name): why for name, why in zip(frame.columns, fitted, strict=True) if isinstance(why, str)}
        if not columns:
            reasons = "; ".join(f"{name}: {why}" for name, why in dropped.items()) or "no columns"
            raise BadTable("No column can be used as a feature", got=reasons, remedy="Give columns that vary.")
        return cls(columns, dropped)

    @property
    def kinds(self) -> dict[str, Kind]:
        """What each column must be: for `read_table` and `iterate_table`."""
        return {column.name: "number" if isinstance(column, NumberColumn) else "text" for column in self.columns}

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per column of the encoded array."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def notes(self) -> list[str]:
        """What a user should know of how the columns are used."""
        said = [f"{name} is not used: {why}." for name, why in self.dropped.items()]
        for column in self.columns:
            if isinstance(column, NumberColumn) and column.flag:
                said.append(f"{column.name} has missing values: filled in by the median, with a flag beside it.")
            elif isinstance(column, TextColumn) and column.other:
                said.append(f"{column.name}: the {MOST_CATEGORIES} most frequent categories, and one for the rest.")
            elif isinstance(column, TextColumn) and not column.categories:
                said.append(f"{column.name} is mostly different in each row: only whether it is missing is used.")
        return said

    def encode(self, frame: pd.DataFrame) -> Encoded:
        """The features of a table with (at least) the columns of training, in any order."""
        frame = named_columns(frame)
        self._require(list(frame.columns))
        rows = frame.index.tolist()
        uses = {column.name: column.encode(cells_of(frame[column.name]), rows) for column in self.columns}
        features = np.concatenate([use.values for use in uses.values()], axis=1).astype(np.float32)
        ignored = tuple(name for name in frame.columns if name not in uses and name not in self.dropped)
        imputed = _positive({name: use.imputed for name, use in uses.items()})
        unseen = _positive({name: use.unseen for name, use in uses.items()})
        clipped = _positive({name: use.clipped for name, use in uses.items()})
        return Encoded(features, EncodingReport(len(frame), imputed, unseen, clipped, ignored))

    def _require(self, given: list[str]) -> None:
        lacking = [column.name for column in self.columns if column.name not in given]
        if lacking:
            raise BadTable(
                f"The table lacks {len(lacking)} of the columns of training: {', '.join(map(repr, lacking[:10]))}",
                got=", ".join(map(repr, given[:20])) or "no columns",
                remedy=f"{nearest(lacking[0], given)}Give the table the columns that training had.".strip(),
            )

    def to_config(self) -> dict[str, object]:
        """Plain data for JSON; `from_config` makes an encoder of it that encodes bit for bit alike."""
        return {"columns": [column.to_config() for column in self.columns], "dropped": dict(self.dropped)}

    @classmethod
    def from_config(cls, config: object) -> Encoder:
        """Read back, with every field checked."""
        columns = tuple(_column_from(item) for item in saved.items(config, "columns"))
        dropped = saved.entry(config, "dropped")
        names = [column.name for column in columns]
        if not columns or len(set(names)) < len(names) or not isinstance(dropped, Mapping):
            raise saved.BadConfig(
                "The saved encoder is damaged", got="no columns, one of them twice, or no dropped ones"
            )
        return cls(columns, {str(name): saved.text(dropped, name) for name in dropped})


def _fit_column(name: str, cells: Cells, rows: list[object]) -> NumberColumn | TextColumn | str:
    """The column fitted, or why it is dropped."""
    return _fit_numbers(name, cells, rows) if isinstance(cells, np.ndarray) else _fit_text(name, as_text(cells))


def _fit_numbers(name: str, cells: Cells, rows: list[object]) -> NumberColumn | str:
    numbers = finite_numbers(name, cells, rows)
    present = numbers[~np.isnan(numbers)]
    if present.size == 0:
        return "it has no values"
    if present.size == numbers.size and present.min() == present.max():
        return "it is constant"
    if present.size == numbers.size and name.startswith("Unnamed: ") and (np.diff(present) > 0).all():
        return "it has no name and counts the rows"
    return NumberColumn.fit(name, numbers)


def _fit_text(name: str, cells: list[str]) -> TextColumn | str:
    counts = Counter(cells)
    missing = counts.pop("", 0)
    present = len(cells) - missing
    if not present:
        return "it has no values"
    if len(counts) == 1 and not missing:
        return "it is constant"
    if len(counts) > max(FREE_TEXT_FROM, present // 2) or (1 < len(counts) == present):
        if missing:
            return TextColumn(name, (), other=False, missing=True)
        return (
            f"nearly every value is different, as in an identifier or free text (such as {next(iter(counts))[:30]!r})"
        )
    return TextColumn.fit(name, cells)


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _column_from(config: object) -> NumberColumn | TextColumn:
    kinds: dict[str, type[NumberColumn] | type[TextColumn]] = {"number": NumberColumn, "text": TextColumn}
    kind = saved.text(config, "kind")
    if kind not in kinds:
        raise saved.BadConfig("A saved column is of no known kind", got=kind, remedy=f"Known: {', '.join(kinds)}.")
    return kinds[kind].from_config(config)
