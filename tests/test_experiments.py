"""Every experiment keeps the contract: its smoke preset yields what it claims, can be stopped, resumed and filtered."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.stats
import typer
from rich.console import Console
from typer.testing import CliRunner

from bayesrule.cli.reproduce_command import list_experiments, reproduce_experiment
from bayesrule.cli.reproduce_command import reproduce as command
from bayesrule.data.files import DataNotFound
from bayesrule.errors import InvalidArgument
from bayesrule.experiments import EXPERIMENTS, PRESETS, Context, Experiment, Preset, Request, Row, experiment, reproduce
from bayesrule.experiments import tabular as tabular_file
from bayesrule.train import TrainingInterrupted

ROOT = Path(__file__).parents[1]
TOP = ["experiment", "preset", "command", "commit", "versions", "seed", "device", "wall_seconds", "rows"]
FIELDS = ["dataset", "method", "variant", "metric", "value", "sem", "n", "paper", "paper_sem"]
OF_A_LAYER = re.compile(r"(conv\d\d)_(.*)")
each = pytest.mark.parametrize("known", EXPERIMENTS.values(), ids=EXPERIMENTS)


class Smokes(dict[str, Path]):
    """The folders of smoke results by experiment, each made when it is first asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, name: str) -> Path:
        self[name] = self.root / name.replace("/", "-")
        reproduce(EXPERIMENTS[name], Request("smoke", self[name]))
        return self[name]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Smokes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield Smokes(tmp_path_factory.mktemp("smoke"))


@each
def test_smoke_yields_every_metric(known: Experiment, smoke: Smokes) -> None:
    result = json.loads((smoke[known.id] / "result.json").read_text())
    assert list(result)[: len(TOP)] == TOP
    assert result["synthetic"] is not known.drawn
    assert result["compute_seconds"] >= 0
    assert all(list(row) == FIELDS for row in result["rows"])
    assert all(math.isfinite(row["value"]) and row["n"] >= 1 for row in result["rows"])
    left_out = {tuple(line.split(":")[0].split(" on ")) for line in result["skipped"]}
    measured = {(row["dataset"], row["method"], row["metric"]) for row in result["rows"]}
    preset = known.presets["smoke"]
    wanted = {
        (dataset, method, metric)
        for dataset in preset.datasets
        for method in preset.methods
        if (method, dataset) not in left_out
        for metric in known.metrics(dataset)
    }
    assert measured == wanted
    # A data set may be missing only as a whole, where an optional package is.
    gone = {name for name in preset.datasets if all((method, name) in left_out for method in preset.methods)}
    assert {row["dataset"] for row in result["rows"]} == set(preset.datasets) - gone
    assert all("is not installed" in line for name in gone for line in result["skipped"] if f" on {name}:" in line)
    assert {claim["standing"] for claim in result["claims"]} <= ({"held"} if known.drawn else {"not measured"})
    of_layers = {metric: OF_A_LAYER.fullmatch(metric) for _, _, metric in measured}
    for table in ("table.txt", "table.md"):
        text = (smoke[known.id] / table).read_text()
        for metric, named in of_layers.items():
            assert all(words in text for words in ([named[1], named[2].replace("_", " ")] if named else [metric]))


@each
def test_an_experiment_is_complete(known: Experiment) -> None:
    assert set(known.presets) == set(PRESETS)
    assert known.presets["smoke"].synthetic
    assert not known.presets["paper"].synthetic
    for preset in known.presets.values():
        assert set(preset.methods) <= set(known.methods)
        assert set(preset.datasets) <= set(known.datasets(None))
    published = json.loads(known.published.read_text())
    assert published["source"]
    assert len({(row["dataset"], row["method"], row["metric"]) for row in published["rows"]}) == len(published["rows"])
    for row in published["rows"]:
        assert row["metric"] in known.metrics(row["dataset"])


class Counted:
    """An experiment of two cells, one of which may be interrupted."""

    def __init__(self, published: Path) -> None:
        self.calls: list[str] = []
        self.interrupted = True
        published.write_text(json.dumps({"source": "here", "rows": []}))
        preset = Preset(("a", "b"), ("m",), {"size": 1})
        self.experiment = Experiment(
            "counted", "A title", dict.fromkeys(PRESETS, preset), ("m", "other"), lambda data: ("a", "b", "c"),
            lambda name: ("score",), self.run, (), published,
        )  # fmt: skip

    def run(self, context: Context) -> list[Row]:
        rows = []
        for name in context.datasets:
            values = context.cell(name, "m", compute=lambda name=name: self.compute(name))
            rows.append(Row.over([values["score"]] * 2, dataset=name, method="m", variant="", metric="score"))
        return rows

    def compute(self, name: str) -> dict[str, float]:
        if name == "b" and self.interrupted:
            raise KeyboardInterrupt
        self.calls.append(name)
        return {"score": float(len(self.calls))}


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path / "published.json")


def test_a_stopped_run_goes_on(counted: Counted, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        reproduce(counted.experiment, Request("quick", out))
    assert not (out / "result.json").exists()
    counted.interrupted = False
    result = reproduce(counted.experiment, Request("quick", out))
    assert counted.calls == ["a", "b"]
    assert [row["value"] for row in result["rows"]] == [1.0, 2.0]
    again = reproduce(counted.experiment, Request("quick", out))
    assert counted.calls == ["a", "b"]
    assert again["rows"] == result["rows"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"identity": {}}', "null"])
def test_a_damaged_cell_is_measured_again(counted: Counted, tmp_path: Path, damage: str) -> None:
    counted.interrupted = False
    reproduce(counted.experiment, Request("quick", tmp_path / "out"))
    (cell,) = (tmp_path / "out" / "cells").glob("a_*.json")
    cell.write_text(damage)
    reproduce(counted.experiment, Request("quick", tmp_path / "out"))
    assert counted.calls == ["a", "b", "a"]


def test_cells_of_another_seed_or_settings_are_not_taken(counted: Counted, tmp_path: Path) -> None:
    counted.interrupted = False
    reproduce(counted.experiment, Request("quick", tmp_path / "out"))
    reproduce(counted.experiment, Request("quick", tmp_path / "out", seed=1))
    assert counted.calls == ["a", "b"] * 2
    other = replace(counted.experiment.presets["quick"], settings={"size": 2})
    changed = replace(counted.experiment, presets=dict.fromkeys(PRESETS, other))
    reproduce(changed, Request("quick", tmp_path / "out", seed=1))
    assert counted.calls == ["a", "b"] * 3


def test_filters_choose_and_refuse(counted: Counted, tmp_path: Path) -> None:
    result = reproduce(counted.experiment, Request("quick", tmp_path / "out", datasets=("c", "a", "c")))
    assert [row["dataset"] for row in result["rows"]] == ["c", "a"]
    assert "--datasets c,a,c" in result["command"]
    with pytest.raises(InvalidArgument, match="Did you mean 'other'"):
        reproduce(counted.experiment, Request("quick", tmp_path / "out", methods=("othr",)))
    with pytest.raises(InvalidArgument, match="no data set 'z'"):
        reproduce(counted.experiment, Request("quick", tmp_path / "out", datasets=("z",)))


def test_refusals_before_any_work(counted: Counted, tmp_path: Path) -> None:
    for request, message in (
        (Request("quick", tmp_path / "out", device="cuda"), "runs on cpu"),
        (Request("quick", tmp_path / "out", device="nonsense"), "no such device"),
        (Request("quick", tmp_path / "out", data=tmp_path / "nowhere"), "no data folder"),
        (Request("quick", tmp_path / "published.json"), "not a folder"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            reproduce(counted.experiment, request)
    assert not counted.calls
    counted.interrupted = False
    reproduce(counted.experiment, Request("quick", tmp_path / "out"))
    with pytest.raises(InvalidArgument, match="something else"):
        reproduce(counted.experiment, Request("paper", tmp_path / "out"))


def test_unknown_experiments_and_presets_suggest_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="Did you mean 'tabular'"):
        experiment("tabula")
    console = Console(quiet=True)
    with pytest.raises(InvalidArgument, match="Did you mean 'smoke'"):
        reproduce_experiment(console, "tabular", "smok", out=tmp_path)
    with pytest.raises(InvalidArgument, match="No experiment"):
        reproduce_experiment(console, None, "smoke", out=tmp_path)


def test_the_command_says_how_to_go_on(
    counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXPERIMENTS, "counted", counted.experiment)
    with pytest.raises(TrainingInterrupted, match="The same command goes on"):
        reproduce_experiment(Console(), "counted", "quick", out=tmp_path / "out")
    counted.interrupted = False
    reproduce_experiment(Console(), "counted", "quick", out=tmp_path / "out", datasets="b, a")
    list_experiments(Console())
    shown = capsys.readouterr().out
    assert "kept from before" in shown
    assert "score" in shown
    assert "A title" in shown


def test_a_group_is_listed_by_what_its_ids_begin_with(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nng", "nng/"):
        with pytest.raises(InvalidArgument, match=r"not one experiment.*nng/table1, .*nng/figure2\.") as refused:
            experiment(name)
        assert "mn/" not in str(refused.value)
    with pytest.raises(InvalidArgument, match="Did you mean 'mn/table2'") as mistyped:
        experiment("mn/tabel2")
    assert "nng/" not in str(mistyped.value)
    list_experiments(Console(width=200), "blr")
    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:]]
    assert ids == [name for name in EXPERIMENTS if name.startswith("blr/")]


def test_exit_codes(counted: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXPERIMENTS, "counted", counted.experiment)
    app = typer.Typer()
    app.command()(command)
    runner = CliRunner()
    asked = ["counted", "--out", str(tmp_path / "out")]
    assert runner.invoke(app, ["--list"]).exit_code == 0
    assert runner.invoke(app, ["countd"]).exit_code == 2
    stopped = runner.invoke(app, asked)
    assert stopped.exit_code == 1
    assert "The same command goes on" in stopped.output
    counted.interrupted = False
    assert runner.invoke(app, asked).exit_code == 0


def test_missing_data_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    with pytest.raises(DataNotFound, match=r"uci/yacht\.npz"):
        reproduce(EXPERIMENTS["tabular"], Request("quick", tmp_path / "out", data=tmp_path))
    assert not (tmp_path / "out").exists()


def test_any_table_of_the_uci_form_is_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x = np.arange(60.0).reshape(30, 2)
    order = np.arange(30)[None]
    (tmp_path / "uci").mkdir()
    np.savez(
        tmp_path / "uci" / "mine.npz", x=x, y=x.sum(1), feature_names=["a", "b"], target_name="t",
        train_index=order[:, :20], test_index=order[:, 20:],
    )  # fmt: skip
    request = Request("quick", tmp_path / "out", tmp_path, datasets=("mine",), methods=("gp",))
    result = reproduce(EXPERIMENTS["tabular"], request)
    assert [row["metric"] for row in result["rows"]] == list(tabular_file.NUMBERS)
    assert {(row["n"], row["sem"], row["paper"]) for row in result["rows"]} == {(1, None, None)}


def test_a_data_folder_that_is_not_read_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    reproduce(EXPERIMENTS["blr/table2"], Request("smoke", tmp_path / "out", data=tmp_path), told.append)
    assert told[0] == "--data is not read: the preset smoke makes up its data"


def test_rows_average_over_runs() -> None:
    row = Row.over([1.0, 2.0, 4.0], dataset="d", method="m", variant="", metric="q")
    assert row.value == pytest.approx(7 / 3, rel=1e-12)
    assert row.sem == pytest.approx(scipy.stats.sem([1.0, 2.0, 4.0]), rel=1e-12)
    assert row.n == 3


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_results", ROOT / "docs" / "make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_results_page_is_what_the_script_makes(script: ModuleType) -> None:
    assert (ROOT / "docs" / "results.md").read_text() == script.page()


def test_synthetic_numbers_are_never_published(script: ModuleType, smoke: Smokes) -> None:
    with pytest.raises(ValueError, match="never published"):
        script.page(smoke["tabular"])
