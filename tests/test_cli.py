"""The commands do what they say: folders, files and tables."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import bayesrule as br
from bayesrule.cli import options
from bayesrule.data import builtin, read_table
from bayesrule.report import Classification
from bayesrule.train.tabular import TabularModel, fit_table
from command_line import FAST, bayesrule, classes, files, numbers, write

COMMAND = [sys.executable, "-c", "from bayesrule.cli import main; main()"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    data = write(classes(), folder / "toy.csv")
    ran = bayesrule("fit", data, *FAST, "--ensemble", 3, "--out", folder / "model")
    assert ran.code == 0, ran
    (folder / "said").write_text(ran.said)
    return folder


def test_version() -> None:
    assert bayesrule("--version").said == f"bayesrule {br.__version__}\n"


def test_the_examples_of_the_help_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wine = builtin("wine")
    write(wine.frame.drop(columns=wine.target), tmp_path / "new.csv")
    for command in ("fit", "predict", "compress", "prune"):
        shown = bayesrule(command, "--help").said
        (example,) = re.findall(r"Example: bayesrule (.+)", shown)
        ran = bayesrule(*shlex.split(example))
        assert ran.code == 0, ran
    assert len(pd.read_csv("predictions.csv")) == len(wine.frame)
    assert TabularModel.load("small-wine").info["compressed_to_rank"] == 1
    assert TabularModel.load("pruned-wine").info["weights_left"] > 0


def test_fit_says_what_it_recognised_and_how_it_went(fitted: Path) -> None:
    said = (fitted / "said").read_text()
    assert "Data: toy, 60 rows, 3 feature columns" in said
    assert "Target: kind (the last column; --target names another of the 4)" in said
    assert "Task: classification, because kind is text with 2 different values" in said
    assert "age has missing values: filled in by the median" in said
    assert re.search(r"Training: step 30 of 30  NLL \S+  KL/N \S+  validation \S+  0\.0\s\S+ left", said)
    assert "On 12 test rows" in said
    for row in ("Bayesian ", "Point estimate ", "Deep ensemble of 3 "):
        assert row in said


def test_fit_writes_the_model_its_measures_and_its_report(fitted: Path) -> None:
    folder = fitted / "model"
    written = {name for name in files(folder) if not name.startswith("tensorboard")}
    assert written == {"model.safetensors", "config.json", "metrics.json", "report.html"}
    metrics = json.loads((folder / "metrics.json").read_text())
    model = TabularModel.load(folder)
    assert metrics["parameters"] == sum(parameter.numel() for parameter in model.members.parameters())
    assert {"test_nll", "test_accuracy", "test_ece", "point_estimate_test_nll", "deep_ensemble_of_3_test_ece"} <= {
        *metrics
    }
    page = (folder / "report.html").read_text()
    for part in (
        *("kind: a Bayesian classifier", "Point estimate", "Deep ensemble of 3", "KL per example", "0.weight"),
        *("KTied(rank=2", "bayesrule predict model new.csv", "colour", "missing values"),
    ):
        assert part in page


def test_the_table_of_measures_is_that_of_the_test_rows(fitted: Path) -> None:
    model = TabularModel.load(fitted / "model")
    _, fit = fit_table(read_table(fitted / "toy.csv"), "kind", settings=model.members.settings, seed=0)
    again = model.evaluate(fit.test_frame, fit.test_targets)
    metrics = json.loads((fitted / "model" / "metrics.json").read_text())
    assert {name: metrics[name] for name in again} == pytest.approx(again, rel=1e-6)


def test_predictions_are_the_models(fitted: Path, tmp_path: Path) -> None:
    new = classes(25).drop(columns="kind")
    new.loc[3, "colour"] = "violet"
    data = write(new, tmp_path / "new.csv")
    ran = bayesrule("predict", fitted / "model", data, "-o", tmp_path / "out.csv")
    assert ran.code == 0
    assert "25 rows predicted" in ran.said
    assert "colour: 1 of 25 values of categories that training did not have" in ran.said
    assert "age: 3 of 25 missing values, filled in." in ran.said
    expected, _ = TabularModel.load(fitted / "model").predict_frame(read_table(data))
    found = pd.read_csv(tmp_path / "out.csv")
    pd.testing.assert_frame_equal(found, expected.astype({"prediction": "str"}), check_dtype=False)
    np.testing.assert_allclose(found["prob_no"] + found["prob_yes"], 1, atol=1e-6)
    assert (found["mutual_information"] <= found["entropy"] + 1e-6).all()


def test_predictions_do_not_depend_on_the_pieces(fitted: Path, tmp_path: Path) -> None:
    data = write(classes(25), tmp_path / "new.csv")
    for rows in (1000, 4):
        assert bayesrule("predict", fitted / "model", data, "-o", tmp_path / f"{rows}.csv", "--rows", rows).code == 0
    whole, pieces = (pd.read_csv(tmp_path / f"{rows}.csv") for rows in (1000, 4))
    pd.testing.assert_frame_equal(whole, pieces, rtol=0, atol=1e-5)


def test_numbers_have_intervals(tmp_path: Path) -> None:
    data = write(numbers(), tmp_path / "prices.csv")
    ran = bayesrule("fit", data, "--target", "price", *FAST, "--posterior", "diagonal", "--out", tmp_path / "model")
    assert ran.code == 0
    assert "Task: regression, because price holds numbers with fractions" in ran.said
    assert "90 % coverage" in ran.said
    assert bayesrule("predict", tmp_path / "model", data, "-o", tmp_path / "out.csv").code == 0
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found) == ["mean", "std", "epistemic_std", "q05", "q50", "q95"]
    assert (found["q05"] < found["q50"]).all()
    assert (found["q50"] < found["q95"]).all()


def test_compress_writes_a_smaller_model(fitted: Path, tmp_path: Path) -> None:
    ran = bayesrule("compress", fitted / "model", "--rank", 1, "-o", tmp_path / "lean", "--data", fitted / "toy.csv")
    assert ran.code == 0
    before, after = TabularModel.load(fitted / "model"), TabularModel.load(tmp_path / "lean")
    sizes = [sum(parameter.numel() for parameter in model.members.parameters()) for model in (before, after)]
    assert sizes[1] < sizes[0]
    assert re.search(rf"Numbers\s+│\s+{sizes[0]:,}\s+│\s+{sizes[1]:,}", ran.said)
    assert re.search(r"NLL\s+│.+│", ran.said)
    assert "training rows may be among them" in ran.said
    assert set(after.info["metrics"]) >= {"data_nll", "data_accuracy"}
    weight = after.members.members[0].posteriors()["0.weight"]
    assert torch.linalg.matrix_rank(weight.stddev.double(), rtol=1e-5) == 1


def test_without_test_rows_there_is_a_model_and_no_report(tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    ran = bayesrule("fit", data, *FAST, "--test-fraction", 0, "--out", tmp_path / "model")
    assert ran.code == 0
    assert "no table and no report" in ran.said
    assert TabularModel.load(tmp_path / "model").info["train_rows"] == 60
    assert not (tmp_path / "model" / "report.html").exists()


def test_quiet_is_silent_and_the_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(classes(), tmp_path / "toy.csv")
    ran = bayesrule("fit", "toy.csv", "--epochs", 2, "--hidden", 8, "--quiet")
    assert (ran.code, ran.said, ran.complaint) == (0, "", "")
    assert (tmp_path / "bayesrule-toy" / "report.html").exists()
    again = bayesrule("fit", "toy.csv", "--resume")
    assert again.code == 0
    assert "nothing to resume" in again.said


def test_digits_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr("bayesrule.cli.fit_command.write_report", lambda report, path: shown.append(report))
    assert bayesrule("fit", *FAST, "--quiet", "--out", tmp_path / "model").code == 0
    (report,) = shown
    digits = builtin("digits")
    assert isinstance(report.predictions, Classification)
    assert report.inputs.pixels.shape == (len(report.predictions), 8, 8)
    pixels = digits.frame.drop(columns=digits.target).to_numpy().reshape(-1, 8, 8)
    assert any((report.inputs.pixels[0] == one).all() for one in pixels)


LONGER = ("--steps", "150", "--hidden", "8", "--test-fraction", "0")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    data = write(classes(), folder / "toy.csv")
    assert bayesrule("fit", data, *LONGER, "--out", folder / "model").code == 0
    return TabularModel.load(folder / "model").members.state_dict()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_training_goes_on_to_the_same_end(
    number: int, tmp_path: Path, uninterrupted: dict[str, torch.Tensor]
) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    words = ["fit", str(data), *LONGER]
    with subprocess.Popen(
        [*COMMAND, *words, "--out", str(tmp_path / "model")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not process.stdout.readline().startswith("Training: step"):
            pass
        process.send_signal(number)
        _, complaint = process.communicate()
    assert process.returncode == 1
    assert "Training was interrupted" in complaint
    assert "--resume" in complaint
    assert "Traceback" not in complaint
    assert bayesrule(*words, "--out", tmp_path / "model").code == 2
    assert bayesrule(*words, "--out", tmp_path / "model", "--resume").code == 0
    resumed = TabularModel.load(tmp_path / "model").members.state_dict()
    assert all(torch.equal(resumed[name], value) for name, value in uninterrupted.items())


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("ktied:3", br.KTied(3, init_std=0.02)),
        ("KTied", br.KTied(2, init_std=0.02)),
        ("diagonal", br.Diagonal(init_std=0.02)),
        ("matrix-normal", br.MatrixNormal(init_std=0.02)),
        ("matrix-normal-diagonal:free", br.MatrixNormalDiagonal("free", init_std=0.02)),
        ("full", br.Full(init_std=0.02)),
    ],
)
def test_posteriors_by_name(text: str, recipe: object) -> None:
    assert options.posterior(text) == recipe


@pytest.mark.parametrize(
    ("text", "recipe"),
    [
        ("normal:0.5", br.Normal(0.5)),
        ("he", br.HeNormal()),
        ("learned", br.LearnedNormal()),
        ("ard", br.ARD()),
        ("group-ard:both", br.GroupARD("both")),
    ],
)
def test_priors_by_name(text: str, recipe: object) -> None:
    assert options.prior(text) == recipe
