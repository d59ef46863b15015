"""The experiments on the learning rule: their claims follow their rows, and their numbers have closed forms."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesrule.experiments import Context, Row
from bayesrule.experiments.blr import BLR, FIGURE1, MULTIMODAL, TABLE1, TABLE2
from bayesrule.experiments.blr import figure1 as figure1_file
from bayesrule.experiments.blr import multimodal as multimodal_file
from bayesrule.experiments.blr.table1 import ROWS, TABLE
from bayesrule.experiments.blr.table2 import duality_errors
from bayesrule.expfam import Gamma


def rows_of_table1(deviation: float, tier: int = 1) -> list[Row]:
    return [
        Row("problems", name, "", metric, value, None, 1)
        for name in ROWS
        for metric, value in (("deviation", deviation), ("tier", tier))
    ]


def test_claims_of_table_1_hold_only_for_close_rows() -> None:
    def standings(rows: list[Row]) -> list[str]:
        return [claim.check(rows).standing for claim in TABLE1.claims]

    assert standings(rows_of_table1(1e-12)) == ["held"] * 3
    assert standings(rows_of_table1(1e-12, tier=2)) == ["held", "held", "not held"]
    assert standings(rows_of_table1(1e-6)) == ["held", "not held", "not held"]
    assert standings(rows_of_table1(1e-12)[:20]) == ["not held"] * 2 + ["held"]


def test_a_missing_comparator_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "newton", replace(TABLE["newton"], packages=("no_such_package",)))
    context = Context(TABLE1.presets["smoke"], ("problems",), ("newton",), None, tmp_path, torch.device("cpu"), 0)
    assert importlib.util.find_spec("no_such_package") is None
    assert TABLE1.run(context) == []
    assert context.skipped == ["newton on problems: no_such_package not installed; extra `test` has it"]


def test_the_wall_has_a_closed_form() -> None:
    """8E[e^(−8θ)] = ½ and 64E[e^(−8θ)] = s: s = 4 and m = (8 + log 16)/8; without q the mean is log(16)/8."""
    wall = figure1_file.LANDSCAPES["wall"]
    mean, _ = figure1_file.solve(wall, "deterministic", 60)
    assert mean == pytest.approx(math.log(16) / 8, abs=1e-5)
    mean, precision = figure1_file.solve(replace(wall, starts=(1.3,), precision=5.0), "bayesian", 150)
    assert mean == pytest.approx((8 + math.log(16)) / 8, abs=5e-3)
    assert precision == pytest.approx(4.0, abs=0.05)


def test_claims_of_figure_1() -> None:
    def row(dataset: str, method: str, metric: str, value: float) -> Row:
        return Row(dataset, method, "", metric, value, None, 1)

    rows = [
        row("wall", "deterministic", "solution", 0.3),
        row("wall", "bayesian", "solution", 1.3),
        row("sharp-and-flat", "deterministic", "solution", -2.0),
        row("sharp-and-flat", "bayesian", "solution", 1.45),
    ]
    assert [claim.check(rows).standing for claim in FIGURE1.claims] == ["held", "held", "not measured"]
    assert [claim.check(rows[:1]).standing for claim in FIGURE1.claims] == ["not measured"] * 3
    worse = [replace(one, value=0.3) for one in rows]
    assert [claim.check(worse).standing for claim in FIGURE1.claims] == ["not held", "not held", "not measured"]


def test_the_minima_are_minima_and_are_counted() -> None:
    for surface in multimodal_file.SURFACES.values():
        minima = torch.tensor(surface.minima, dtype=torch.float64)
        for point in minima:
            assert surface.loss.gradient(point).abs().max() < 0.05
            assert torch.linalg.eigvalsh(surface.loss.hessian(point)).min() > 1
        two = torch.stack([minima[0], minima[0] + 0.1, minima[2], torch.zeros(2).double()])
        assert multimodal_file.counted(surface, two) == {"minima_found": 2, "share_at_a_minimum": 0.75}


def test_duality_errors_are_small() -> None:
    assert max(duality_errors(Gamma(), 20, 0).values()) < 1e-8
    rows = [Row("random members", "Gamma", "", "round_trip", value, None, 1) for value in (1e-12, 1e-3)]
    (claim,) = TABLE2.claims
    assert [claim.check(rows[:1]).standing, claim.check(rows).standing] == ["held", "not held"]


def test_figures_are_drawn(tmp_path: Path) -> None:
    for experiment in (FIGURE1, MULTIMODAL):
        preset = experiment.presets["smoke"]
        context = Context(preset, preset.datasets, preset.methods, None, tmp_path, torch.device("cpu"), 0)
        figures = experiment.figures(context, experiment.run(context))
        assert all(len(figure.axes) == 2 for figure in figures.values())


def test_the_ids() -> None:
    names = ("table1", "table2", "figure1", "multimodal", "uncertainty", "binary")
    assert [known.id for known in BLR] == [f"blr/{name}" for name in names]
