"""The choices of the default model, one changed at a time: its validation rows, readings, claims and page."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from bayesrule.experiments import EXPERIMENTS, Row
from bayesrule.experiments.tabular_ablation import DEFAULT, METHODS, SETS, TRAININGS, validation_split
from bayesrule.experiments.tabular_data import synthetic_table
from bayesrule.train.member_loop import MemberLoop
from bayesrule.train.members import Members, Settings, train_members, trained_loop

ROOT = Path(__file__).parents[1]
READINGS = {name: reading for training in TRAININGS for name, reading in training.readings.items()}
SETTINGS = Settings(hidden=(8,), folds=3, steps=15, draws=12, seed=4)


def test_validation_rows_are_the_last_training_rows_and_never_test_rows() -> None:
    table = synthetic_table("yacht")
    split = validation_split(table, 1)
    train, _ = table.splits[1]
    cut = round(0.85 * len(train))
    first, last = table.x[train[:cut]], table.x[train[cut:]]
    np.testing.assert_allclose(split.x_test, (last - first.mean(0)) / first.std(0), rtol=1e-12)
    np.testing.assert_allclose(split.y_train.mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(
        split.y_test * split.scale + table.y[train[:cut]].mean(), table.y[train[cut:]], rtol=1e-9
    )
    assert len(split.y_train) + len(split.y_test) == len(train)


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator)
    return x, x[:, :1] + 0.1 * torch.randn(40, 1, generator=generator)


@pytest.fixture(scope="module")
def loop(data: tuple[torch.Tensor, torch.Tensor]) -> MemberLoop:
    return trained_loop(*data, "regression", SETTINGS)


def log_scales(members: Members) -> list[float]:
    return [round(float(member.module[-1].log_scale), 9) for member in members.members]


def test_the_default_reading_is_the_library_itself(loop: MemberLoop, data: tuple[torch.Tensor, torch.Tensor]) -> None:
    theirs, _ = train_members(*data, "regression", SETTINGS)
    ours = READINGS[DEFAULT](loop)
    assert torch.equal(ours.predictive(data[0]).outputs, theirs.predictive(data[0]).outputs)


def test_readings_take_the_members_they_name(loop: MemberLoop) -> None:
    every = list(loop.stacked.members)
    warm, cold = READINGS["temperature 0.1 alone"](loop), READINGS["temperature 0.01 alone"](loop)
    assert list(warm.members) == every[:3]
    assert list(cold.members) == every[3:]
    assert list(READINGS["one fold's members"](loop).members) == [every[0], every[3]]
    for reading in READINGS.values():
        assert float(reading(loop).shares.sum()) == pytest.approx(1.0, abs=1e-6)


def test_without_calibration_scales_are_one_and_shares_equal(loop: MemberLoop) -> None:
    found = READINGS["no calibration"](loop)
    assert log_scales(found) == [0.0] * 6
    assert found.shares.tolist() == pytest.approx([1 / 6] * 6, abs=1e-7)


def test_the_last_state_is_kept_if_asked_for(data: tuple[torch.Tensor, torch.Tensor]) -> None:
    (training,) = (known for known in TRAININGS if known.name == "last state")
    settings = Settings(hidden=(8,), folds=3, steps=60, learning_rate=0.3, **training.change)
    last = trained_loop(*data, "regression", settings)
    assert last.best_nll.tolist() == pytest.approx(
        (-last._log_densities(last.held_out[:, :1000], 4, 0.0).mean(1)).tolist(), rel=1e-5
    )
    best = trained_loop(*data, "regression", Settings(hidden=(8,), folds=3, steps=60, learning_rate=0.3))
    assert bool((best.best_nll <= last.best_nll + 1e-6).all())
    assert bool((best.best_nll < last.best_nll - 1e-6).any())


def test_claims_follow_the_numbers() -> None:
    def rows(method: str, loss: float) -> list[Row]:
        classes = {"digits", "breast-cancer", "wine"}
        return [
            Row(name, method, "", "nll", loss, None, 2)
            if name in classes
            else Row(name, method, "", "log_likelihood", -loss, None, 2)
            for name in SETS
        ]

    claims = dict(
        zip([name for name in METHODS if name != DEFAULT], EXPERIMENTS["tabular-defaults"].claims, strict=True)
    )
    check = claims["temperature 1"].check
    assert check(rows(DEFAULT, 0.1) + rows("temperature 1", 0.2)).standing == "held"
    assert check(rows(DEFAULT, 0.1) + rows("temperature 1", 0.05)).standing == "not held"
    assert check(rows(DEFAULT, 0.1)).standing == "not measured"
    single = claims["one Gaussian as noise"].check
    numbers = [row for row in rows("one Gaussian as noise", 0.2) if row.metric == "log_likelihood"]
    assert single(rows(DEFAULT, 0.1) + numbers).standing == "held"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_defaults", ROOT / "docs" / "make_tabular_defaults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_result(script: ModuleType) -> None:
    text = (ROOT / "docs" / "tabular-defaults.md").read_text()
    assert text == script.page(text)


def test_the_table_shows_what_is_lost(script: ModuleType, tmp_path: Path) -> None:
    def row(dataset: str, method: str, metric: str, value: float) -> dict[str, object]:
        return {"dataset": dataset, "method": method, "metric": metric, "value": value}

    rows = [
        row("a", DEFAULT, "log_likelihood", -1.0), row("a", DEFAULT, "coverage_90", 0.9),
        row("b", DEFAULT, "nll", 0.5), row("a", "other", "log_likelihood", -1.25),
        row("a", "other", "coverage_90", 0.8), row("b", "other", "nll", 0.25),
    ]  # fmt: skip
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"rows": rows}))
    made = script.page(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n", file)
    assert "| other | +0.250 | −0.250 | +0.000 | 80.0 % |" in made
    assert "| default | – | – | – | 90.0 % |" in made
    assert "old" not in made
    assert made.startswith("before\n")
    assert made.endswith("\nafter\n")
    assert "Not measured yet." in script.page(made, tmp_path / "absent.json")
