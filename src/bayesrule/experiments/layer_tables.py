"""Metrics of single layers, ``conv03_rows_left``: a table with a line for each layer, in place of dozens of columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

LAYER = "layer"
_OF_A_LAYER = re.compile(r"(?P<layer>[a-z]+\d{2})_(?P<metric>\w+)")


def without_layers(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows that are of no single layer."""
    return [row for row in rows if not _OF_A_LAYER.fullmatch(row["metric"])]


def layer_groups(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """The others, by what the keys say; each with its layer apart from its metric, in words."""
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if match := _OF_A_LAYER.fullmatch(row["metric"]):
            named = {LAYER: match["layer"], "metric": match["metric"].replace("_", " ")}
            found.setdefault(tuple(row.get(key, "") for key in keys), []).append({**row, **named})
    return found
