"""Writes the table of docs/tabular-defaults.md from results/tabular-defaults/result.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from bayesrule.experiments.rendering import markdown_table
from bayesrule.experiments.tabular_ablation import DEFAULT

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "tabular-defaults.md"
RESULT = ROOT / "results" / "tabular-defaults" / "result.json"
BEGIN, END = "<!-- made by make_tabular_defaults.py -->", "<!-- end -->"
NOTHING = "–"
UNMEASURED = "Not measured yet."
SIGNS = {"log_likelihood": 1, "nll": -1}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What is lost with each change: log-likelihood per row on each set, their mean, and the mean coverage."""
    fits = {
        (row["method"], row["dataset"]): SIGNS[row["metric"]] * row["value"] for row in rows if row["metric"] in SIGNS
    }
    sets = list(dict.fromkeys(name for _, name in fits))
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        losses = {name: fits[DEFAULT, name] - fits[method, name] for name in sets if (method, name) in fits}
        covered = fmean(row["value"] for row in rows if (row["method"], row["metric"]) == (method, "coverage_90"))
        told = [_signed(losses[name]) if name in losses else NOTHING for name in sets]
        shown = [NOTHING] * (len(sets) + 1) if method == DEFAULT else [*told, _signed(fmean(losses.values()))]
        lines.append([method, *shown, f"{100 * covered:.1f} %"])
    return markdown_table(["change", *sets, "mean", "coverage"], lines)


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def page(text: str, result: Path = RESULT) -> str:
    """The page with its table made anew."""
    shown = table(json.loads(result.read_text(encoding="utf-8"))["rows"]) if result.exists() else UNMEASURED
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{shown}\n{END}{after}"


if __name__ == "__main__":
    TARGET.write_text(page(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
