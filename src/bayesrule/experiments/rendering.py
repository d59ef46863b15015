"""A result as a table: plain text for a terminal, markdown for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bayesrule.experiments.layer_tables import LAYER, layer_groups, without_layers
from bayesrule.report.numbers import MISSING, duration, number
from bayesrule.text_table import aligned

KEYS = ("dataset", "method", "variant")
MARKS = {"held": "✓ held", "not held": "✗ not held", "not measured": "– not measured"}
DIGITS = 4
LARGE = 1e7
"""From here on numbers are told as powers of ten, also those of things counted."""
NOTHING = "Nothing was measured."


class Table(NamedTuple):
    """Cells in words, and what they are of where the columns do not say it."""

    header: list[str]
    lines: list[list[str]]
    caption: str = ""


def pivot(rows: Sequence[Mapping[str, Any]], keys: Sequence[str] = KEYS, caption: str = "") -> Table:
    """A line for each data set and method, a column for each metric, and beside it what was published."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    published = {row["metric"] for row in rows if row.get("paper") is not None}
    keys = [key for key in keys if any(row.get(key) for row in rows)]
    cells: dict[tuple[str, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        cells.setdefault(tuple(row.get(key, "") for key in keys), {})[row["metric"]] = row
    header = list(keys)
    for metric in metrics:
        header += [metric, "published"] if metric in published else [metric]
    return Table(header, [_line(place, found, metrics, published) for place, found in cells.items()], caption)


def _line(
    place: Sequence[str], found: Mapping[str, Mapping[str, Any]], metrics: Sequence[str], published: set[str]
) -> list[str]:
    line = list(place)
    for metric in metrics:
        row = found.get(metric, {})
        line.append(_with_error(row.get("value"), row.get("sem")))
        if metric in published:
            line.append(_with_error(row.get("paper"), row.get("paper_sem")))
    return line


def _with_error(value: float | None, sem: float | None) -> str:
    if value is None:
        return MISSING
    whole = float(value).is_integer() and abs(value) < LARGE
    told = number(value, 1 if whole else DIGITS)
    return told if sem is None else f"{told} ± {number(sem, 2)}"


def plain_columns(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of any other form: a column for each of their fields."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    return Table(header, [[_cell(row.get(key)) for key in header] for row in rows])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return number(value, DIGITS)
    return MISSING if value is None else str(value)


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Of the rows of any result: one for all data sets that have the same metrics, then those of single layers."""
    if not all("metric" in row for row in rows):
        return [plain_columns(rows)]
    metrics: dict[str, dict[str, None]] = {}
    for row in (whole := without_layers(rows)):
        metrics.setdefault(row["dataset"], {})[row["metric"]] = None
    alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in whole:
        alike.setdefault(tuple(metrics[row["dataset"]]), []).append(row)
    of_layers = [
        pivot(group, (LAYER,), f"Layer by layer: {', '.join(filter(None, place))}")
        for place, group in layer_groups(rows, KEYS).items()
    ]
    return [pivot(group) for group in alike.values()] + of_layers


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """The same for a page."""
    ruled = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in ruled)


def text_result(result: Mapping[str, Any], title: str) -> str:
    """All of it for a terminal."""
    parts = [f"{title} ({_source(result)})"]
    parts += [_captioned(table, aligned(table.header, *table.lines)) for table in tables(result["rows"])] or [NOTHING]
    parts += ["\n".join(remarks(result))] if remarks(result) else []
    return "\n\n".join(parts)


def markdown_result(result: Mapping[str, Any], title: str, level: int = 1) -> str:
    """All of it for a page."""
    parts = [f"{'#' * level} {title}", f"{_source(result)}.", f"`{result['command']}`"]
    parts += [_captioned(table, markdown_table(table.header, table.lines)) for table in tables(result["rows"])] or [
        NOTHING
    ]
    parts += ["\n".join(f"- {remark}" for remark in remarks(result))] if remarks(result) else []
    return "\n\n".join(parts)


def _captioned(table: Table, drawn: str) -> str:
    return f"{table.caption}\n\n{drawn}" if table.caption else drawn


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Notes, verdicts on claims, and what was left out."""
    claims = [f"{MARKS[claim['standing']]}: {claim['claim']} ({claim['detail']})" for claim in result.get("claims", [])]
    synthetic = (
        ["The data are synthetic: the numbers say only that everything runs."] if result.get("synthetic") else []
    )
    left_out = [f"Left out: {line}" for line in result.get("skipped", [])]
    return [*synthetic, *result.get("notes", []), *claims, *left_out]


def _source(result: Mapping[str, Any]) -> str:
    """Preset, device, time of computing, seed and commit, as far as they are told."""
    parts = [f"preset {result['preset']}"] if "preset" in result else []
    parts += [result["device"]] if "device" in result else []
    parts += [f"computed in {duration(result['compute_seconds'])}"] if "compute_seconds" in result else []
    commit, dirty = result["commit"].removesuffix("-dirty"), result["commit"].endswith("-dirty")
    return ", ".join([*parts, f"seed {result['seed']}", f"commit {commit[:10]}{' with changes' if dirty else ''}"])
