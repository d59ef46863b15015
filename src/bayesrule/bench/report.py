"""A run as a person reads it: a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesrule.bench.peers import PEERS
from bayesrule.bench.results import write_result
from bayesrule.experiments.rendering import remarks
from bayesrule.report.numbers import MISSING, number
from bayesrule.text_table import aligned

TEXT, PICTURE = "table.txt", "steps.png"
COLUMNS = ("step", "× point", "memory", "× point", "GFLOP", "moved", "at least", "drawn", "set-up", "first step")
PREDICT_COLUMNS = ("prediction", "× point", "memory")
DIGITS = 3


def write_report(folder: Path, result: Mapping[str, Any]) -> str:
    """Write result.json, the table and the picture into a folder; the table's text."""
    write_result(folder, result)
    text = table(result)
    (folder / TEXT).write_text(text + "\n", encoding="utf-8")
    draw(result, folder / PICTURE)
    return text


def table(result: Mapping[str, Any]) -> str:
    """For a terminal: a block for each model, batch and mode, the fastest method first."""
    blocks = []
    for (dataset, variant), methods in _grouped(result["rows"]).items():
        training = not any("predict ms" in values for values in methods.values())
        key, columns, line = ("step ms", COLUMNS, _line) if training else ("predict ms", PREDICT_COLUMNS, _predict_line)
        ordered = sorted(methods.items(), key=lambda item: item[1].get(key, float("inf")))
        blocks.append(
            f"{dataset}, {variant}\n" + aligned(("", *columns), *((name, *line(values)) for name, values in ordered))
        )
    return "\n\n".join([*blocks, "\n".join(remarks(result))])


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Ratios to the point estimate's step with their intervals, a panel for each model, batch and mode."""
    import matplotlib
    from matplotlib.figure import Figure

    groups = {
        case: {name: values for name, values in methods.items() if "step ratio" in values}
        for case, methods in _grouped(result["rows"]).items()
    }
    groups = {case: methods for case, methods in groups.items() if methods}
    tall = sum(len(methods) for methods in groups.values())
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(7, 1 + 0.24 * tall + 0.6 * len(groups)), layout="constrained")
        heights = [len(methods) for methods in groups.values()] or [1]
        panels = figure.subplots(len(heights), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for panel, (case, methods) in zip(panels, groups.items(), strict=False):
            _panel(panel, ", ".join(case), methods)
        panels[-1].set_xlabel("training step, as a multiple of the point estimate's")
        figure.savefig(path, dpi=120)


def _panel(panel: Any, title: str, methods: Mapping[str, Mapping[str, float]]) -> None:
    ordered = sorted(methods.items(), key=lambda item: item[1]["step ratio"], reverse=True)
    for height, (name, values) in enumerate(ordered):
        value, low, high = (values[f"step ratio{end}"] for end in ("", " low", " high"))
        bars = [[max(value - low, 0)], [max(high - value, 0)]]
        colour = "tab:orange" if name in PEERS else "tab:blue"
        panel.errorbar([value], [height], xerr=bars, fmt="o", markersize=4, color=colour, capsize=2)
    panel.set_yticks(range(len(ordered)), [name for name, _ in ordered])
    panel.set_title(title, loc="left")
    panel.axvline(1, color="grey", linewidth=0.8)
    panel.grid(axis="x", alpha=0.3)


def _grouped(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    grouped: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in rows:
        methods = grouped.setdefault((row["dataset"], row["variant"]), {})
        methods.setdefault(row["method"], {})[row["metric"]] = row["value"]
    return grouped


def _line(values: Mapping[str, float]) -> list[str]:
    def told(metric: str, unit: str = "") -> str:
        return f"{number(values[metric], DIGITS)}{unit}" if metric in values else MISSING

    return [
        told("step ms", " ms"), _ratio(values, "step"), told("peak MiB", " MiB"), told("memory ratio"), told("GFLOP"),
        told("MiB moved", " MiB"), told("MiB at least", " MiB"), told("million drawn", " M"), told("set-up ms", " ms"),
        told("first step ms", " ms"),
    ]  # fmt: skip


def _predict_line(values: Mapping[str, float]) -> list[str]:
    time, memory = (number(values[metric], DIGITS) for metric in ("predict ms", "predict peak MiB"))
    return [f"{time} ms", _ratio(values, "predict"), f"{memory} MiB"]


def _ratio(values: Mapping[str, float], what: str) -> str:
    if f"{what} ratio" not in values:
        return MISSING
    value, low, high = (number(values[f"{what} ratio{end}"], DIGITS) for end in ("", " low", " high"))
    return f"{value} ({low}–{high})"
