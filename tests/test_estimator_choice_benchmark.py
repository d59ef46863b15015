"""The benchmark of Auto's choice measures what it says, and its kept result shows no costly choice."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "results" / "estimator-choice" / "result.json"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("estimator_choice")


@pytest.mark.parametrize("shape", [(400, 400, 3), (2, 3, 3, 5, 2)])
def test_both_estimators_are_measured(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(bench, "LEAST_TURNS", 2)
    rows = bench.measure(shape, "2-tied", "held out", torch.device("cpu"), 0.0)
    found = {row["metric"]: row["value"] for row in rows}
    assert {row["n"] for row in rows} == {2}
    assert found["local / drawn"] == pytest.approx(found["local ms"] / found["drawn ms"], rel=1e-12)
    faster = min(found["local ms"], found["drawn ms"])
    assert found["auto is local"] == float(len(shape) == 3)  # so small a convolution is drawn
    taken = found["local ms"] if found["auto is local"] else found["drawn ms"]
    assert found["auto / faster"] == pytest.approx(taken / faster, rel=1e-12)


def test_no_shape_is_both_tuned_on_and_held_out(bench: ModuleType) -> None:
    assert not set(bench.TUNED) & set(bench.HELD_OUT)
    assert bench.chosen("mean-field", (1024, 1024, 32), torch.empty(32, 1024)) == "local"
    assert not bench.is_asked((4096, 4096, 32), "matrix normal")


def test_the_kept_result_has_no_costly_choice(bench: ModuleType) -> None:
    rows = json.loads(RESULT.read_text())["rows"]
    asked = {(bench.words_for(shape), family) for shape in (*bench.TUNED, *bench.HELD_OUT) for family in bench.FAMILIES
             if bench.is_asked(shape, family)}  # fmt: skip
    losses = {(row["dataset"], row["method"]): row["value"] for row in rows if row["metric"] == "auto / faster"}
    assert set(losses) == asked
    assert max(losses.values()) <= 1.1
