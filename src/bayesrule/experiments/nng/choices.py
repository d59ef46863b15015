"""The settings that `nng/search` chose on validation rows, kept in `settings.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

FILE = Path(__file__).with_name("settings.json")
SEARCHED = "nng/search, by the mean log-likelihood of validation rows"
EVERY = "*"
"""The entry for a data set nobody searched on: the point with the least mean loss to each set's best."""
FIELDS = {"λ": "kl_weight", "lr": "lr", "prior": "prior_std"}


@lru_cache(maxsize=1)
def chosen() -> dict[str, dict[str, dict[str, float]]]:
    """By data set and method."""
    return json.loads(FILE.read_text(encoding="utf-8"))["chosen"]


def choice(dataset: str, method: str) -> Mapping[str, float]:
    """What was chosen for a method on a data set, or for every data set."""
    return chosen().get(dataset, {}).get(method) or chosen()[EVERY][method]


def words(point: Mapping[str, float]) -> str:
    """A point of the grid, as the variant of a row."""
    return ", ".join(f"{name} {point[field]:g}" for name, field in FIELDS.items())


def point_of(variant: str) -> dict[str, float]:
    """The way back."""
    parts = dict(part.split(" ") for part in variant.split(", "))
    return {field: float(parts[name]) for name, field in FIELDS.items()}


def with_choices(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The contents of `settings.json`, given the rows of the search's result."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        if row["metric"] == "valid_log_likelihood":
            found.setdefault(row["method"], {}).setdefault(row["dataset"], {})[row["variant"]] = row["value"]
    result: dict[str, dict[str, dict[str, float]]] = {EVERY: {}}
    for method, by_set in found.items():
        for dataset, points in by_set.items():
            result.setdefault(dataset, {})[method] = point_of(max(points, key=points.__getitem__))
        shared = set.intersection(*(set(points) for points in by_set.values()))
        losses = {p: fmean(max(points.values()) - points[p] for points in by_set.values()) for p in sorted(shared)}
        result[EVERY][method] = point_of(min(losses, key=losses.__getitem__))
    return {"source": SEARCHED, "chosen": result}
