"""What is chosen from a search, and where it is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from bayesrule.errors import InvalidArgument
from bayesrule.experiments import Context
from bayesrule.experiments.nng import choices, regression
from bayesrule.experiments.nng.keep_choices import app, keep
from bayesrule.experiments.nng.protocol import Setting, Stacked, replicas_of, rule_of
from bayesrule.experiments.nng.table1 import TABLE1
from bayesrule.experiments.tabular_data import synthetic_table
from bayesrule.train.replicas import Replicas

RESULTS = Path(__file__).parents[1] / "results" / "nng"


def searched(
    dataset: str, weight: float, noise: tuple[float, float] = choices.PLAIN_NOISE, metric: str = choices.CHOSEN
) -> list[dict[str, Any]]:
    """A point that a search marked, and one that it did not."""
    variants = [
        choices.words({"kl_weight": each, "lr": 0.01, "prior_std": 1.0, "beta": 0.001, "noise_prior": noise})
        for each in (weight, 7.0)
    ]
    return [{"dataset": dataset, "method": "noisy-kfac", "variant": variant, "metric": metric, "value": value}
            for variant, value in zip(variants, (1.0, 0.0), strict=True)]  # fmt: skip


def test_choices_are_the_points_that_a_search_marks() -> None:
    rows = [*searched("a", 0.1), *searched("b", 1.0), *searched("a", 0.5, metric=choices.FOR_ALL),
            *searched("b", 0.5, metric=choices.FOR_ALL)]  # fmt: skip
    result = choices.with_choices(rows)
    assert result["chosen"]["a"]["noisy-kfac"] == {"kl_weight": 0.1, "lr": 0.01, "prior_std": 1.0, "beta": 0.001}
    assert {name: found["noisy-kfac"]["kl_weight"] for name, found in result["chosen"].items()} == {
        "a": 0.1, "b": 1.0, "*": 0.5,
    }  # fmt: skip
    assert set(result) == {"chosen"}


def test_every_noise_prior_has_its_choice() -> None:
    found = choices.with_choices([*searched("a", 0.1), *searched("a", 0.5, choices.WEAK_NOISE)])
    assert [found[key]["a"]["noisy-kfac"]["kl_weight"] for key in choices.KEYS.values()] == [0.1, 0.5]


def test_equal_log_likelihoods_are_told_apart_by_errors_and_greatest_losses() -> None:
    assert choices.best({"x": (-1.0, 2.0), "y": (-1.008, 1.0)}) == "y"
    assert choices.best({"x": (-1.0, 2.0), "y": (-1.02, 1.0)}) == "x"
    a = {"x": (-1.0, 1.0), "y": (-1.06, 1.0)}
    b = {"x": (-1.1, 1.0), "y": (-1.05, 1.0), "z": (-1.0, 1.0)}
    assert choices.best_for_all({"a": a, "b": b}) == "y"


def test_choices_are_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "settings.json"
    before = {"*": {"bbb": {"kl_weight": 0.3}, "noisy-kfac": {"kl_weight": 0.9}}, "a": {"bbb": {"kl_weight": 0.2}}}
    stored.write_text(json.dumps({"chosen": before}))
    monkeypatch.setattr(choices, "FILE", stored)
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"experiment": "nng/search", "preset": "paper", "rows": searched("a", 0.1)}))
    keep(result, choices.FILE)
    choices.chosen.cache_clear()
    try:
        assert choices.choice("nobody searched on it", "bbb") == {"kl_weight": 0.3}
        assert choices.choice("a", "bbb") == {"kl_weight": 0.2}
        assert choices.choice("a", "noisy-kfac")["kl_weight"] == 0.1
        assert choices.choice("a", "noisy-kfac", weak_noise=True)["kl_weight"] == 0.1
    finally:
        choices.chosen.cache_clear()


def test_choices_for_two_layers_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "settings.json"
    shallow = {"*": {"noisy-kfac": {"kl_weight": 0.9}}, "a": {"noisy-kfac": {"kl_weight": 0.7}}}
    stored.write_text(json.dumps({"chosen": shallow, "conventions": {"start": "he"}}))
    monkeypatch.setattr(choices, "FILE", stored)
    choices.chosen.cache_clear()
    result = tmp_path / "result.json"
    try:
        assert choices.choice("a", "noisy-kfac", deep=True)["kl_weight"] == 0.7  # nobody searched there yet
        result.write_text(json.dumps({"experiment": "nng/deep-search", "preset": "paper", "rows": searched("a", 0.1)}))
        keep(result, choices.FILE)
        choices.chosen.cache_clear()
        weights = [choices.choice("a", "noisy-kfac", deep=deep)["kl_weight"] for deep in (False, True)]
        assert weights == [0.7, 0.1]
        result.write_text(json.dumps({"experiment": "nng/search", "preset": "paper", "rows": searched("a", 0.5)}))
        keep(result, choices.FILE)
        choices.chosen.cache_clear()
        weights = [choices.choice("a", "noisy-kfac", deep=deep)["kl_weight"] for deep in (False, True)]
        assert weights == [0.5, 0.1]
        kept = json.loads(stored.read_text())
        assert [each["source"].split(":")[0] for each in (kept, kept[choices.DEEP])] == [
            "nng/search",
            "nng/deep-search",
        ]
        assert choices.conventions("noisy-kfac") == {"start": "he"}
    finally:
        choices.chosen.cache_clear()


def test_conventions_hold_for_the_methods_that_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "settings.json"
    monkeypatch.setattr(choices, "FILE", stored)
    stored.write_text(json.dumps({"chosen": {"*": {}}}))
    assert choices.conventions("noisy-kfac") == {}
    common = {"warm_up": False, "start": "he", "quiet_steps": 7}
    stored.write_text(json.dumps({"conventions": common, "conventions of a method": {"noisy-adam": {"max_kl": 0.5}}}))
    asked = Context(TABLE1.presets["quick"], ("yacht",), ("bbb",), None, tmp_path, torch.device("cpu"), 0)
    kfac, adam, bbb = (regression.setting_of(asked, "yacht", m, "λ=1") for m in ("noisy-kfac", "noisy-adam", "bbb"))
    assert (kfac.warm_up, kfac.start, kfac.quiet_steps) == (False, "he", 7)
    assert (adam.warm_up, adam.start, adam.quiet_steps) == (None, "he", 7)
    assert (adam.max_kl, kfac.max_kl) == (0.5, 0.01)
    assert (bbb.warm_up, bbb.start, bbb.quiet_steps) == (None, "he", 0)
    assert not rule_of(kfac).warm_up
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"experiment": "nng/search", "preset": "paper", "rows": searched("a", 0.1)}))
    keep(result, choices.FILE)
    assert choices.conventions("noisy-kfac")["start"] == "he"
    assert choices.conventions("noisy-adam")["max_kl"] == 0.5


@pytest.mark.parametrize("other", [{"experiment": "nng/table1"}, {"preset": "smoke"}])
def test_other_results_are_refused_and_change_nothing(other: dict[str, str], tmp_path: Path) -> None:
    settings, result = tmp_path / "settings.json", tmp_path / "result.json"
    settings.write_text("{}")
    found = {"experiment": "nng/search", "preset": "paper", "rows": searched("a", 0.1)} | other
    result.write_text(json.dumps(found))
    with pytest.raises(InvalidArgument, match="preset paper"):
        keep(result, settings)
    with pytest.raises(InvalidArgument, match=r"result\.json of a search"):
        keep(tmp_path, settings)
    assert settings.read_text() == "{}"


def test_choices_go_into_a_new_file_and_leave_others_where_they_were(tmp_path: Path) -> None:
    settings, result = tmp_path / "settings.json", tmp_path / "result.json"
    found = {"experiment": "nng/search", "preset": "paper", "rows": [*searched("b", 0.1), *searched("a", 0.2)]}
    result.write_text(json.dumps(found))
    keep(result, settings)
    first = settings.read_text()
    result.write_text(json.dumps(found | {"rows": searched("a", 0.2)}))
    assert keep(result, settings) == []
    assert settings.read_text() == first


@pytest.mark.parametrize("content", ["{", "[]", '{"experiment": "nng/search", "preset": "paper", "rows": []}'])
def test_files_without_choices_are_refused(content: str, tmp_path: Path) -> None:
    settings, result = tmp_path / "settings.json", tmp_path / "result.json"
    result.write_text(content)
    told = CliRunner().invoke(app, [str(result), "--settings", str(settings)])
    assert told.exit_code == 2
    assert "result.json" in told.output
    assert not settings.exists()


def test_the_choice_for_every_set_is_the_default_of_replicas() -> None:
    """With the conventions of the tables: the same networks come out, bit for bit."""
    weak = {"noise_prior": choices.WEAK_NOISE}
    chosen = choices.choice("nobody searched on it", "noisy-kfac", weak_noise=True)
    setting = Setting("noisy-kfac").changed({**choices.conventions("noisy-kfac"), **chosen, **weak})
    data = Stacked.of([synthetic_table("nobody searched on it").split(0)])
    tables, default = replicas_of([setting], data, "", [0]), Replicas(data.x_train, data.y_train, seeds=[0])
    assert default.program.quiet_steps == tables.program.quiet_steps == 1000
    for replicas in (tables, default):
        replicas.program = replace(replicas.program, quiet_steps=20)
        replicas.train(epochs=8)
    assert default.state.steps > 40
    for one, other in zip(default.state.means, tables.state.means, strict=True):
        assert torch.equal(one, other)


def test_published_searches_give_the_settings(tmp_path: Path) -> None:
    """All but conventions, which have an experiment of their own."""
    names = ("search", "deep-search")
    results = [str(RESULTS / name / "result.json") for name in names]
    settings, stored = tmp_path / "settings.json", json.loads(choices.FILE.read_text())
    conventions = (choices.CONVENTIONS, choices.OWN_CONVENTIONS)
    settings.write_text(json.dumps({name: stored[name] for name in conventions}))
    told = CliRunner().invoke(app, [*results, "--settings", str(settings)])
    assert told.exit_code == 0
    assert "chosen / boston / noisy-kfac / kl_weight: None → 0.5" in told.output
    assert json.loads(settings.read_text()) == stored
    assert CliRunner().invoke(app, [str(tmp_path)]).exit_code == 2
