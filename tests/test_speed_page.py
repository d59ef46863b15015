"""The tables of docs/speed.md show what was measured, and mark the best of each row."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODELS = {
    "784-400-400-10": "mlp", "784-128-10": "mlp-small", "LeNet": "lenet", "LSTM": "lstm", "transformer": "transformer",
    "4 × dense 4096": "dense-4096x4", **{f"dense {width} × {width}": f"dense-{width}" for width in (1024, 2048, 4096)},
}  # fmt: skip
METHODS = {
    "2-tied": ("ktied", "ktied-local", "ktied-sample"), "local noise": ("ktied-local",),
    "weights drawn": ("ktied-sample",), "mean-field": ("meanfield-local",), "IVON": ("ivon",),
    "IVON, mirrored": ("ivon-mirrored",), "ivon-opt": ("ivon-opt",), "bayesian-torch": ("bayesian-torch",),
    "blitz": ("blitz-bayesian-pytorch",), "Pyro": ("pyro-ppl",), "torch-uncertainty": ("torch-uncertainty",),
}  # fmt: skip
PRECISIONS = {"bfloat16": "bf16", "float32": "float32"}
TABLES = {
    "training step": ("eager", ("cpu", "cpu/dense")), "long run": ("eager", ("cpu/batch-1024",)),
    "compiled step": ("compiled", ("cpu/compiled",)), "recorded step": ("captured", ("cuda",)),
    "eager step": ("eager", ("cuda",)),
}  # fmt: skip
"""By the head of its first column: the mode, and where its numbers are."""

OPTIMIZERS = {"AdamW": "adamw", "IVON": "ivon", "VOGN": "vogn", "KTiedVON": "ktied-von", "NoisyAdam": "noisy-adam",
              "NoisyKFAC": "noisy-kfac"}  # fmt: skip

Ratios = dict[tuple[str, str, str], float]


def ratios(folders: tuple[str, ...]) -> Ratios:
    """By dataset, method and variant."""
    files = [json.loads((ROOT / "results" / "bench" / folder / "result.json").read_text()) for folder in folders]
    return {(row["dataset"], row["method"], row["variant"]): row["value"]
            for file in files for row in file["rows"] if row["metric"] == "step ratio"}  # fmt: skip


def tables(heads: Collection[str] = TABLES) -> dict[str, list[list[str]]]:
    """Cells, by the head of the first column."""
    lines = (ROOT / "docs" / "speed.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else [] for line in lines]
    found: dict[str, list[list[str]]] = {}
    for index, row in enumerate(rows):
        if row and row[0] in heads:
            end = next(at for at in range(index, len(rows) + 1) if at == len(rows) or not rows[at])
            found[row[0]] = [row, *rows[index + 2 : end]]
    return found


def columns(head: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Of each column the precision, which counts for those after it too, and the methods."""
    precision, found = "float32", []
    for cell in head[1:]:
        named, _, method = cell.rpartition(": ")
        precision = PRECISIONS[named] if named else precision
        found.append((precision, METHODS[method]))
    return found


def test_all_tables_are_there() -> None:
    assert tables().keys() == TABLES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_show_what_was_measured(name: str) -> None:
    mode, folders = TABLES[name]
    measured, (head, *rows) = ratios(folders), tables()[name]
    assert rows
    for label, *cells in rows:
        model, batch = re.fullmatch(r"(.+), batch (\d+)", label).groups()  # type: ignore[union-attr]
        for cell, (precision, methods) in zip(cells, columns(head), strict=True):
            keys = [(f"{MODELS[model]}, batch {batch}", method, f"{mode}, {precision}") for method in methods]
            value = min((measured[key] for key in keys if key in measured), default=math.nan)
            shown = "–" if math.isnan(value) else f"{value:.{1 if value >= 10 else 2}f}"
            assert cell.strip("*") == shown, (label, methods)


@pytest.mark.parametrize("name", TABLES)
def test_the_best_of_each_row_is_marked(name: str) -> None:
    head, *rows = tables()[name]
    precisions = [precision for precision, _ in columns(head)]
    for label, *cells in rows:
        for precision in dict.fromkeys(precisions):
            here = [cell for cell, of in zip(cells, precisions, strict=True) if of == precision and cell != "–"]
            best = min(float(cell.strip("*")) for cell in here)
            assert [cell for cell in here if float(cell.strip("*")) == best] == [
                cell for cell in here if cell.startswith("**")
            ], label


def test_the_table_of_optimizers_shows_what_was_measured() -> None:
    head, *rows = tables(["optimizer's step"])["optimizer's step"]
    file = json.loads((ROOT / "results" / "optimizer-steps" / "gpu" / "result.json").read_text())
    measured = {(row["method"], row["variant"]): row["value"] for row in file["rows"] if row["metric"] == "ratio"}
    assert [label for label, *_ in rows] == list(OPTIMIZERS)
    for label, *cells in rows:
        values = [measured.get((OPTIMIZERS[label], variant)) for variant in head[1:]]
        assert cells == ["–" if value is None else f"{value:.2f}" for value in values]
