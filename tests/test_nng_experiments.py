"""The experiments of noisy natural gradient: protocol, search, active learning, claims, training curves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributions

from bayesrule.experiments import EXPERIMENTS, Context, Row
from bayesrule.experiments.nng import choices, claims, figure1, regression, table2, table3
from bayesrule.experiments.nng.active import Run, Trial, rounds, small_settings
from bayesrule.experiments.nng.data import ABSENT, tables
from bayesrule.experiments.nng.protocol import (
    Setting,
    Stacked,
    replicas_of,
    rule_of,
    scores,
    train,
    validation_split,
)
from bayesrule.experiments.nng.table1 import TABLE1
from bayesrule.experiments.tabular_data import Table, synthetic_table
from bayesrule.train.active_learning import active_learning


@pytest.fixture
def table() -> Table:
    return synthetic_table("yacht")


def context(preset: Any, tmp_path: Path, datasets: tuple[str, ...], methods: tuple[str, ...]) -> Context:
    return Context(preset, datasets, methods, None, tmp_path, torch.device("cpu"), 0)


def test_scores_are_in_the_targets_own_units(table: Table) -> None:
    """The same rows in other units: errors grow with the unit, densities fall by its logarithm."""
    unit = 7.0
    scaled = Table(table.name, table.task, table.x, table.y * unit, table.splits)
    found = [
        scores(
            [Setting("noisy-kfac", epochs=2, hidden=(5,))] * 2, Stacked.of([t.split(0), t.split(1)]), "yacht", [0, 1]
        )
        for t in (table, scaled)
    ]
    assert found[1]["rmse"] == pytest.approx([unit * value for value in found[0]["rmse"]], rel=1e-4)
    shifted = [value - math.log(unit) for value in found[0]["log_likelihood"]]
    assert found[1]["log_likelihood"] == pytest.approx(shifted, rel=1e-4)


def test_validation_rows_are_training_rows(table: Table) -> None:
    train_rows, test_rows = table.splits[0]
    changed = Table(table.name, table.task, table.x.copy(), table.y.copy(), table.splits)
    changed.x[test_rows], changed.y[test_rows] = np.nan, np.nan
    for before, after in zip(*(vars(validation_split(t, 0)).values() for t in (table, changed)), strict=True):
        np.testing.assert_array_equal(before, after)
    split = validation_split(table, 0)
    assert len(split.y_train) + len(split.y_test) == len(train_rows)
    assert len(split.y_test) == round(0.2 * len(train_rows))


def test_a_search_point_is_the_run_it_stands_for(table: Table) -> None:
    """Points as replicas of one program score as they do alone."""
    data = Stacked.of([table.split(0)], torch.float64)
    points = [
        Setting("noisy-kfac", kl_weight=weight, lr=lr, epochs=3, hidden=(5,))
        for weight, lr in ((0.1, 0.01), (1.0, 0.003))
    ]
    together = scores(points, data.repeated(2), "yacht", [4, 4])
    for number, point in enumerate(points):
        alone = scores([point], data, "yacht", [4])
        assert {name: values[number] for name, values in together.items()} == pytest.approx(
            {name: values[0] for name, values in alone.items()}, rel=1e-9
        )


def test_step_size_and_width_follow_the_paper(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Stacked.of([table.split(0)])
    replicas = replicas_of([Setting("noisy-kfac")], data, "yacht", [0])
    assert replicas.program.layout.shapes == ((7, 50), (51, 1))
    assert replicas.stream.batch_size == 10
    assert replicas_of([Setting("noisy-kfac")], data, "protein", [0]).program.layout.shapes == ((7, 100), (101, 1))
    seen: list[tuple[int, float]] = []
    monkeypatch.setattr(replicas, "train", lambda epochs, lr_factor=1.0: seen.append((epochs, lr_factor)))
    train(replicas, 11)
    assert seen == [(6, 1.0), (5, 0.1)]


@pytest.mark.parametrize("method", [*regression.METHODS, *table3.METHODS])
def test_every_method_has_its_rule(method: str) -> None:
    rule = rule_of(Setting(method, beta=0.02))
    name = type(rule).__name__.removesuffix("Rule").lower()
    wanted = {"bbb": "bayesbybackprop", "noisy-kfac-exact": "noisykfac"}.get(method, method.replace("-", ""))
    assert name == wanted
    if method not in ("bbb", "noisy-adam"):
        assert rule.beta == 0.02  # type: ignore[attr-defined]
    assert getattr(rule, "damping", "factored") == ("exact" if method == "noisy-kfac-exact" else "factored")


def test_rows_count_the_splits_behind() -> None:
    mine = {"rmse 0": 1.0, "rmse 1": 3.0, "log_likelihood 0": -1.0, "log_likelihood 1": -2.0}
    kfac = {"rmse 0": 2.0, "rmse 1": 2.0, "log_likelihood 0": -0.5, "log_likelihood 1": -1.0}
    found = {row.metric: row for row in regression._rows("boston", "bbb", "λ=1", mine, [4.0, 6.0], kfac)}
    assert {name: row.value for name, row in found.items()} == {
        "rmse": 2.0, "log_likelihood": -1.5, "rmse_worst": 3.0, "rmse_of_constant": 0.5, "rmse_behind_kfac": 1.0,
        "log_likelihood_behind_kfac": 2.0,
    }  # fmt: skip
    assert found["rmse"].sem == pytest.approx(math.sqrt(2) / math.sqrt(2))


def test_the_worst_split_is_compared_with_the_mean_of_its_training_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "scores", lambda settings, *rest: {
        name: [1.0 + number for number in range(len(settings))] for name in regression.SCORES
    })  # fmt: skip
    rows = regression.run(context(TABLE1.presets["smoke"], tmp_path, ("yacht",), ("bbb",)))
    table = synthetic_table("yacht")
    constants = [float(np.sqrt(np.mean((table.y[test] - table.y[train].mean()) ** 2))) for train, test in table.splits]
    (found,) = (row.value for row in rows if (row.variant, row.metric) == ("λ=1", "rmse_of_constant"))
    assert found == pytest.approx(max(1.0 / constants[0], 2.0 / constants[1]), rel=1e-6)


def test_year_says_that_it_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    asked = context(TABLE1.presets["paper"], tmp_path, ("year",), ("bbb", "noisy-kfac"))
    assert tables(asked) == []
    assert asked.skipped == [f"bbb on year: {ABSENT}", f"noisy-kfac on year: {ABSENT}"]


def test_settings_that_share_no_program_are_run_apart(table: Table) -> None:
    """In any order, each as it is alone."""
    data = Stacked.of([table.split(0)], torch.float64).repeated(3)
    settings = [Setting("noisy-kfac", beta=beta, kl_weight=weight, epochs=2, hidden=(5,))
                for beta, weight in ((0.001, 1.0), (0.1, 1.0), (0.001, 0.2))]  # fmt: skip
    together = scores(settings, data, "yacht", [4, 4, 4])
    for number, setting in enumerate(settings):
        alone = scores([setting], data.taken([0]), "yacht", [4])
        assert together["rmse"][number] == pytest.approx(alone["rmse"][0], rel=1e-9)


def test_the_elbo_is_that_of_dense_normals(table: Table) -> None:
    data = Stacked.of([table.split(0), table.split(1)], torch.float64)
    replicas = replicas_of([Setting("noisy-kfac", hidden=(3,))] * 2, data, "yacht", [0, 1])
    replicas.train(2)
    found = figure1.elbo(replicas, samples=6)
    outputs = replicas.predict(data.x_train, 6).outputs
    noise, n = replicas.state.noise, data.x_train.shape[1]
    for number in range(2):
        shape, rate = noise.shape[number, 0, 0], noise.rate[number, 0, 0]
        law, prior = (distributions.Gamma(a, b) for a, b in ((shape, rate), (6.0 + 0 * shape, 6.0 + 0 * rate)))
        mean_log = torch.digamma(shape) - rate.log()
        squares = (outputs[:, number] - data.y_train[number]).square().mean()
        expected = 0.5 * (mean_log - math.log(2 * math.pi) - law.mean * squares)
        kl = distributions.kl_divergence(law, prior)
        for posterior in replicas.posteriors():
            mean, dense = posterior.mean[number].flatten(), posterior.covariance.dense()[number]
            own = distributions.MultivariateNormal(mean, dense)
            standard = distributions.MultivariateNormal(torch.zeros_like(mean), torch.eye(len(mean)).double())
            kl = kl + distributions.kl_divergence(own, standard)
        torch.testing.assert_close(found[number], expected - kl / n, rtol=1e-9, atol=0)


def test_a_curve_reaches_a_level_when_it_stays_there() -> None:
    curve = figure1.Curve(0.01, [10, 20, 30, 40], [-3.0, -1.0, -2.0, -1.0])
    assert [curve.reaches(level) for level in (-4.0, -2.5, -1.5, 0.0)] == [10.0, 20.0, 40.0, 40.0]


def test_a_level_that_is_never_reached_is_told_so() -> None:
    def rows(end: float) -> list[Row]:
        values = {"bbb": (-1.0, 30.0), "noisy-kfac": (end, 60.0)}
        return [Row("boston", method, "lr 0.01", metric, value, None, 1) for method, pair in values.items()
                for metric, value in zip(("elbo", "iterations_to_bbb"), pair, strict=True)]  # fmt: skip

    claim = figure1.faster("noisy-kfac", 2.0)
    assert claim.check(rows(-1.01)).standing == "held"
    verdict = claim.check(rows(-1.5))
    assert (verdict.standing, verdict.detail) == ("not held", "share of BBB's iterations: boston never")


def test_trials_are_shuffled_as_active_learning_does(table: Table) -> None:
    trial = Trial.shuffled(len(table.x), 20, 30, seed=5)
    seen: list[torch.Tensor] = []

    def learner(x: torch.Tensor, y: torch.Tensor, seed: int) -> Any:
        seen.append(x)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        active_learning(learner, torch.from_numpy(table.x), torch.from_numpy(table.y)[:, None], test=30, seed=5)
    np.testing.assert_allclose(seen[0].numpy(), trial.split(table).x_train, rtol=1e-12, atol=1e-12)
    assert sorted(trial.known + trial.test + trial.pool) == list(range(len(table.x)))


def test_active_learning_adds_the_most_uncertain(table: Table) -> None:
    setting = Setting("noisy-kfac", hidden=(4,), epochs=20, batch_size=10, samples=20)
    runs = [Run(setting, "random"), Run(setting, "variance"), Run(setting.changed({"kl_weight": 0.1}), "variance")]
    protocol = {"trials": 2, "labelled": 20, "test": 30, "additions": 2, "seed": 0}
    by_chance, chosen, lighter = rounds(runs, table, **protocol)
    assert by_chance["rmse_start"] == pytest.approx(chosen["rmse_start"], rel=1e-4)
    assert by_chance["rmse"] != pytest.approx(chosen["rmse"], rel=1e-3)
    assert chosen["rmse_start"] != pytest.approx(lighter["rmse_start"], rel=1e-3)
    (alone,) = rounds(runs[1:2], table, **protocol)
    assert alone["rmse"] == pytest.approx(chosen["rmse"], rel=1e-3)


@pytest.mark.parametrize("method", table3.METHODS)
def test_variants_of_small_networks_differ_in_the_weight_of_the_kl(method: str) -> None:
    plain = Setting(method, hidden=(10,), batch_size=10, epochs=3)
    found = small_settings(method, "boston", {"epochs": 3})
    assert found["λ=1"] == plain
    searched = method if method in ("bbb", "noisy-adam") else "noisy-kfac"
    assert found["validated"] == replace(plain, kl_weight=choices.chosen()["boston"][searched]["kl_weight"])
    assert found["validated"].kl_weight < 1


def test_hmc_has_a_number_of_trials_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a cell, and one that was kept is not run again; its rows of data are those of the others' same trial."""
    started: list[int] = []

    def trial(asked: Context, table: Table, how: str, number: int) -> dict[str, float]:
        started.append(number)
        return {"rmse": float(number), "rmse_start": 2.0 * number}

    monkeypatch.setattr(table2, "_hmc_trial", trial)
    monkeypatch.setattr(table2.importlib.util, "find_spec", lambda name: object())
    smoke = table2.TABLE2.presets["smoke"]
    preset = replace(smoke, settings={**smoke.settings, "hmc_trials": 3})
    for _ in range(2):
        found = table2.run(context(preset, tmp_path, ("yacht",), ("hmc-active", "noisy-kfac-random")))
    assert started == [0, 1, 2]
    counted = {(row.method, row.metric): (row.value, row.n) for row in found if row.method == "hmc-active"}
    assert counted == {("hmc-active", "rmse"): (1.0, 3), ("hmc-active", "rmse_start"): (2.0, 3)}
    assert {row.n for row in found if row.method == "noisy-kfac-random"} == {2}
    assert table2.TABLE2.presets["paper"].settings["hmc_trials"] == 5


def rows_of(values: dict[tuple[str, str, str, str], float], n: int = 20) -> list[Row]:
    return [Row(*key, value, None, n) for key, value in values.items()]


@pytest.mark.parametrize(("rmse", "density", "standing"), [(2.9, -2.5, "held"), (3.0, -2.5, "not held"),
                                                     (2.9, -2.6, "not held")])  # fmt: skip
def test_bounds(rmse: float, density: float, standing: str) -> None:
    claim = claims.reaches("plain", "noisy-kfac", "λ=1", {"boston": (2.95, -2.52)}, 20)
    key = ("boston", "noisy-kfac", "λ=1")
    rows = rows_of({(*key, "rmse"): rmse, (*key, "log_likelihood"): density})
    assert claim.check(rows).standing == standing
    assert claim.check(rows[:1]).standing == "not measured"
    assert claim.check(rows_of({(*key, "rmse"): rmse, (*key, "log_likelihood"): density}, 5)).standing == "not measured"


def test_wins() -> None:
    claim = claims.wins("λ=1", ("bbb",), ("boston",), 17, 20)
    keys = [("boston", "bbb", "λ=1", f"{name}_behind_kfac") for name in ("rmse", "log_likelihood")]
    assert claim.check(rows_of(dict(zip(keys, (17, 20), strict=True)))).standing == "held"
    assert claim.check(rows_of(dict(zip(keys, (20, 16), strict=True)))).standing == "not held"


def test_divergence() -> None:
    key = ("boston", "bbb", "λ=1")
    for worst, standing in ((2.9, "held"), (3.1, "not held")):
        rows = rows_of({(*key, "rmse"): 1.0, (*key, "rmse_worst"): worst})
        assert claims.none_stands_out().check(rows).standing == standing
        assert claims.none_diverges().check(rows).standing == "not measured"
    for share, standing in ((0.99, "held"), (1.0, "not held"), (math.inf, "not held")):
        steady = {("yacht", "bbb", "λ=1", "rmse_of_constant"): 0.1}
        assert claims.none_diverges().check(rows_of(steady | {(*key, "rmse_of_constant"): share})).standing == standing
    claim = claims.no_split_above("boston", "bbb", "λ=1", 3.0)
    assert claim.check(rows_of({(*key, "rmse_worst"): 2.9})).standing == "held"


def test_published_numbers_are_the_papers() -> None:
    rows = json.loads((TABLE1.published).read_text())["rows"]
    found = {(row["dataset"], row["method"], row["metric"]): (row["value"], row["sem"]) for row in rows}
    assert found["boston", "noisy-kfac", "rmse"] == (2.296, 0.029)
    assert found["yacht", "pbp-mv", "log_likelihood"] == (-1.024, 0.025)
    assert found["year", "bbb", "rmse"] == (9.076, None)
    assert {name for name in EXPERIMENTS if name.startswith("nng/")} >= {
        "nng/table1", "nng/table2", "nng/table3", "nng/table4", "nng/figure1", "nng/search",
    }  # fmt: skip
