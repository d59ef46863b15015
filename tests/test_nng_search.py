"""The search for settings: what its points and its finalists are measured by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesrule.errors import InvalidArgument
from bayesrule.experiments import Context, Request, reproduce
from bayesrule.experiments.nng import search
from bayesrule.experiments.nng.choices import CHOSEN, FOR_ALL, words
from bayesrule.experiments.nng.protocol import Setting, Stacked, validation_split
from bayesrule.experiments.nng.search import SEARCH
from bayesrule.experiments.nng.table1 import TABLE1
from bayesrule.experiments.tabular_data import Table, synthetic_table


@pytest.fixture
def table() -> Table:
    return synthetic_table("yacht")


def context(preset: Any, tmp_path: Path) -> Context:
    return Context(preset, (), (), None, tmp_path, torch.device("cpu"), 0)


def test_a_step_size_that_diverges_loses(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(settings: list[Setting], *rest: Any) -> dict[str, list[float]]:
        if any(setting.lr > 0.1 for setting in settings):
            raise InvalidArgument("Replicas diverged")
        return {"rmse": [setting.lr for setting in settings], "log_likelihood": [-1.0] * len(settings)}

    monkeypatch.setattr(search, "scores", measured)
    data = Stacked.of([table.split(0)]).repeated(3)
    settings = [Setting("noisy-kfac", lr=lr) for lr in (0.01, 1.0, 0.02)]
    found = search._attempted(settings, data, "yacht", [0, 0, 0], torch.device("cpu"))
    assert found == {"rmse": [0.01, math.inf, 0.02], "log_likelihood": [-1.0, -math.inf, -1.0]}


def test_the_search_marks_the_best_point(tmp_path: Path) -> None:
    result = reproduce(SEARCH, Request("smoke", tmp_path, methods=("bbb",)))
    values = {(row["variant"], row["metric"]): row["value"] for row in result["rows"]}
    points = {variant for variant, _ in values}
    assert len(points) == 2
    best = max(points, key=lambda point: values[point, "final_log_likelihood"])
    for mark in ("chosen", "chosen_for_all"):
        assert {point: values[point, mark] for point in points} == {point: float(point == best) for point in points}
    counts = {(row["metric"], row["n"]) for row in result["rows"] if row["metric"].endswith("rmse")}
    assert counts == {("valid_rmse", 2), ("final_rmse", 3)}


NAMES = [words({"kl_weight": weight, "noise_prior": (6, 6)}) for weight in (0.1, 0.5, 1.0, 2.0)]


def cells(*densities: tuple[float, ...]) -> dict[str, dict[str, list[float]]]:
    """With errors of one, but for a run that is worse than all others by a nat: it failed."""
    return {name: {"log_likelihood": list(each), "rmse": [100.0 if max(each) - one > 1.0 else 1.0 for one in each]}
            for name, each in zip(NAMES, densities, strict=False)}  # fmt: skip


def marked(found: Any, finals: Any, metric: str) -> set[tuple[str, str]]:
    rows = search._rows("bbb", found, finals)
    return {(row.dataset, row.variant) for row in rows if row.metric == metric and row.value}


def test_a_point_for_all_sets_is_measured_again_on_all_of_them() -> None:
    """One that is ahead in short runs, and behind in the long ones, is not chosen."""
    found = {"a": cells((-1.0,), (-1.1,), (-1.2,), (-0.5,)), "b": cells((-2.0,), (-2.1,), (-2.2,), (-9.0,))}
    assert search.candidates_for_all(found, 3) == set(NAMES[:3])
    finals = {"a": cells((-1.0,), (-1.1,), (-1.2,)), "b": cells((-3.0,), (-2.1,), (-2.2,))}
    assert marked(found, finals, FOR_ALL) == {("a", NAMES[1]), ("b", NAMES[1])}


def test_a_point_of_which_a_run_fails_is_not_chosen_while_there_is_another() -> None:
    """A run in twenty costs less, on average, than is gained elsewhere; nobody wants that one."""
    steady, failing = (-1.0,) * 20, (*(-0.5,) * 19, -2.0)
    runs = {"a": cells((-0.5,) * 20, steady), "b": cells(failing, steady)}
    assert marked(runs, runs, FOR_ALL) == {("a", NAMES[1]), ("b", NAMES[1])}
    assert marked(runs, runs, CHOSEN) == {("a", NAMES[0]), ("b", NAMES[1])}
    all_fail = {"a": cells(failing, failing), "b": cells(failing, tuple(each - 1.0 for each in failing))}
    assert marked(all_fail, all_fail, CHOSEN) == {("a", NAMES[0]), ("b", NAMES[0])}
    assert marked(all_fail, all_fail, FOR_ALL) == {("a", NAMES[0]), ("b", NAMES[0])}


def test_finalists_are_the_best_of_each_noise_prior_and_step_size() -> None:
    found = {
        words({"kl_weight": weight, "lr": lr, "noise_prior": noise}): {"log_likelihood": [each] * 2, "rmse": [1.0] * 2}
        for noise, lr, offset in (((6, 6), 0.1, 0.0), ((6, 6), 0.01, -5.0), ((1, 0.01), 0.1, 10.0))
        for weight, each in ((0.1, offset - 1.0), (0.5, offset - 3.0), (1.0, offset - 2.0))
    }
    assert search.finalists(found, 2) == {
        f"λ {weight}, lr {lr}, noise {noise}"
        for weight in ("0.1", "1")
        for lr, noise in (("0.1", "6/6"), ("0.01", "6/6"), ("0.1", "1/0.01"))
    }


def test_a_splits_score_is_the_mean_over_its_seeds(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(settings: list[Setting], data: Stacked, name: str, seeds: list[int], device: Any) -> dict[str, Any]:
        assert [round(each, 9) for each in data.scale.tolist()] == [round(each, 9) for each in scales * 4]
        return {name: [seed + 100 * each.kl_weight for seed, each in zip(seeds, settings, strict=True)]
                for name in search.SCORES}  # fmt: skip

    monkeypatch.setattr(search, "scores", scored)
    scales = [validation_split(table, number).scale for number in range(3)]
    points = [{"kl_weight": weight, "noise_prior": (6.0, 6.0)} for weight in (1.0, 2.0)]
    asked = context(SEARCH.presets["smoke"], tmp_path)
    found = search.measured(asked, table, "bbb", points, search.Size(splits=3, epochs=1, samples=2, seeds=2))
    for weight, cell in zip((1, 2), found.values(), strict=True):
        assert cell["rmse"] == [100 * weight + split + 1.5 for split in range(3)]


def test_finals_are_trained_as_the_tables_are(tmp_path: Path) -> None:
    asked = context(SEARCH.presets["paper"], tmp_path)
    table1 = TABLE1.presets["paper"].settings
    for name in TABLE1.presets["paper"].datasets:
        size = search.Size.of_finals(asked, name)
        assert size.splits == search.SIZES_OF_FINALS.get(name, table1)["splits"]
        assert size.samples == table1["samples"]
        assert size.epochs == table1["deviations"].get(name, {}).get("epochs", table1["epochs"])
