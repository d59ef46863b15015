"""The seconds of computing behind a result, on a clock that only moves when told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from bayesrule.experiments import Context, Preset
from bayesrule.experiments import context as context_file
from bayesrule.experiments import effort as effort_file


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for file in (context_file, effort_file):
        monkeypatch.setattr(file, "time", found)
    return found


def run(clock: Clock, out: Path, told: list[str], cells: Mapping[str, float]) -> Context:
    """Cells that evaluate one model for a second each; it was trained for 100, and comes by in what they say."""
    context = Context(Preset((), ()), (), (), None, out, torch.device("cpu"), 0, progress=told.append)

    def compute(coming_by: float) -> dict[str, float]:
        clock.now += coming_by
        context.effort.model("model", 100.0, coming_by)
        clock.now += 1.0
        return {"value": 1.0}

    for name, coming_by in cells.items():
        context.cell(name, compute=lambda coming_by=coming_by: compute(coming_by))
    return context


def test_a_model_counts_once_however_it_came_by(clock: Clock, tmp_path: Path) -> None:
    context = run(clock, tmp_path, [], {"trains": 100.0, "loads": 0.25})
    assert sum(context.effort.seconds.values()) == 102.0
    waits = run(clock, tmp_path / "other", [], {"waits for another process": 500.0})
    assert sum(waits.effort.seconds.values()) == 101.0


def test_cells_kept_from_before_keep_their_seconds(clock: Clock, tmp_path: Path) -> None:
    run(clock, tmp_path, [], {"a": 100.0})
    told: list[str] = []
    context = run(clock, tmp_path, told, {"a": 0.0, "b": 0.25})
    assert sum(context.effort.seconds.values()) == 102.0
    assert context.seconds_before == 101.0
    assert told == ["a: kept from before", "b: 1.2 s"]


def test_a_cell_asked_for_again_is_neither_told_nor_counted_again(clock: Clock, tmp_path: Path) -> None:
    told: list[str] = []
    context = run(clock, tmp_path, told, {"a": 0.0})
    context.cell("a", compute=lambda: pytest.fail("it is kept"))
    assert told == ["a: 1.0 s"]
    assert context.seconds_before == 0.0
    assert sum(context.effort.seconds.values()) == 101.0
