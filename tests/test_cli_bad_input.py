"""Bad input gets a message that says what, what was got and what to do; nothing is lost or half-written."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bayesrule.likelihoods import Categorical
from bayesrule.train.tabular import TabularModel
from command_line import FAST, bayesrule, classes, files, numbers, refused, write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    data = write(classes(), folder / "toy.csv")
    assert bayesrule("fit", data, *FAST, "--out", folder / "model").code == 0
    return folder / "model"


BAD_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_text(""), "is empty"),
    "header only": (lambda path: path.write_text("a,b\n"), "too few rows.*\nGot: only a header"),
    "two rows": (lambda path: path.write_text("a,b\n1,2\n3,4\n"), "too few rows.*\nGot: 2 rows"),
    "three rows": (lambda path: path.write_text("a,b\n1,x\n3,y\n5,x\n"), "at least 10 rows.*\nGot: 3"),
    "a column twice": (lambda path: path.write_text("a,a,b\n1,2,3\n" * 1 + "4,5,6\n" * 20), "same name.*\nGot: 'a'"),
    "another encoding": (
        lambda path: path.write_bytes("größe,art\n1,ä\n".encode("latin-1") + "2,ö\n".encode("latin-1") * 20),
        "UTF-8",
    ),
    "utf-16": (lambda path: path.write_bytes("a,b\n1,2\n".encode("utf-16")), "UTF-16"),
    "a constant number": (lambda path: write(numbers().assign(price=1.5), path), "'price' is constant"),
    "one class": (lambda path: write(classes().assign(kind="yes"), path), "one class only.*\nGot: 'yes'"),
    "an infinity": (lambda path: write(classes().assign(size=math.inf), path), "infinite or too large.*\nGot: inf in"),
    "an infinite target": (
        lambda path: write(numbers().assign(price=[1.5] * 7 + [math.inf] + [2.5] * 52), path),
        "'price' .*infinite or too large.*\nGot: inf in line 9",
    ),
    "no target values": (lambda path: write(classes().assign(kind=None), path), "has no values"),
    "no feature": (lambda path: write(classes()[["kind"]], path), "No column can be used"),
    "ragged rows": (lambda path: path.write_text("a,b\n1,2\n3,4,5\n"), "3 cells"),
    "a folder": (lambda path: path.mkdir(), "is a folder"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_bad_file(fault: str, tmp_path: Path) -> None:
    spoil, message = BAD_FILES[fault]
    data = tmp_path / "data.csv"
    spoil(data)
    refused(bayesrule("fit", data, *FAST, "--out", tmp_path / "model"), 2, message)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["data.csv"]


def test_no_such_file(tmp_path: Path) -> None:
    refused(bayesrule("fit", tmp_path / "none.csv", "--out", tmp_path / "model"), 2, "There is no file .*none.csv")
    refused(bayesrule("fit", "digit", "--out", tmp_path / "model"), 2, "neither a file nor", "Did you mean 'digits'")
    assert not files(tmp_path)


def test_a_wrong_target_suggests_the_nearest(tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    ran = bayesrule("fit", data, "--target", "kinds", "--out", tmp_path / "model")
    refused(ran, 2, "no column 'kinds'", r"\nGot: 'size', 'colour', 'age', 'kind'", "Did you mean 'kind'")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--posterior", "ktid:2"], ["no posterior 'ktid'", "Did you mean 'ktied'", "matrix-normal-diagonal", "full"]),
        (["--posterior", "ktied:two"], ["cannot be read", "Write it as ktied:RANK"]),
        (["--posterior", "ktied:0"], ["at least 1"]),
        (["--posterior", "ktied:99"], ["rank is too large", "smaller rank"]),
        (["--posterior", "diagonal:2"], ["cannot be read", "Write it as diagonal"]),
        (["--prior", "norml"], ["no prior 'norml'", "Did you mean 'normal'"]),
        (["--prior", "normal:-1"], ["positive"]),
        (["--hidden", "64,x"], ["whole numbers", "--hidden 64,64"]),
        (["--hidden", "0"], ["whole numbers"]),
        (["--epochs", "-3"], ["--epochs must be at least 1", "Got: -3"]),
        (["--steps", "0"], ["--steps must be at least 1"]),
        (["--steps", "9", "--epochs", "9"], ["one length"]),
        (["--ensemble", "1"], ["--ensemble must be at least 2"]),
        (["--seed", "-1"], ["--seed must be at least 0"]),
        (["--test-fraction", "1.5"], ["--test-fraction must be"]),
        (["--test-fraction", "nan"], ["--test-fraction must be"]),
        (["--test-fraction", "0.99"], ["too few rows"]),
    ],
)
def test_bad_options(words: list[str], parts: list[str], tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    ran = bayesrule("fit", data, *words, "--out", tmp_path / "model")
    refused(ran, 2, *parts, "Got: ")
    assert not (tmp_path / "model").exists()


def test_usage_errors_have_code_two() -> None:
    assert bayesrule("fit", "--epochs", "many").code == 2
    assert bayesrule("predict").code == 2
    assert bayesrule("guess").code == 2


def test_an_output_folder_that_exists_keeps_what_it_holds(model: Path, tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    before = files(model)
    refused(bayesrule("fit", data, *FAST, "--out", model), 2, "holds a model already", "--force")
    assert files(model) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary").write_text("dear")
    refused(bayesrule("fit", data, *FAST, "--out", tmp_path / "mine"), 2, "holds something else", "Got: diary")
    refused(bayesrule("fit", data, *FAST, "--out", data), 2, "is not a folder")
    assert files(tmp_path / "mine") == {"diary": b"dear"}


def test_force_replaces_a_model_only_when_the_new_one_is_there(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    data = write(classes(), tmp_path / "toy.csv")
    bad = write(classes().assign(kind="yes"), tmp_path / "bad.csv")
    before = files(copy)
    refused(bayesrule("fit", bad, *FAST, "--out", copy, "--force"), 2, "one class only")
    assert files(copy) == before
    assert bayesrule("fit", data, *FAST, "--seed", 1, "--out", copy, "--force", "--quiet").code == 0
    assert TabularModel.load(copy).info["seed"] == 1


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    ran = bayesrule("fit", data, *FAST, "--out", data / "model")
    refused(ran, 2, "cannot be written|is not a folder", "What to do: Choose a folder that you may write to")


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["bayesrule.nn.model_folder.os.fsync", "bayesrule.cli.fit_command.write_report"])
def test_a_full_disk_while_fitting_keeps_the_old_model(
    step: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    data = write(classes(), tmp_path / "toy.csv")
    before = files(copy)
    with monkeypatch.context() as patched:
        patched.setattr(step, full)
        ran = bayesrule("fit", data, *FAST, "--out", copy, "--force")
    refused(ran, 1, "Got: No space left on device", "Free some space")
    assert {name: files(copy)[name] for name in before} == before
    assert not [name for name in files(copy) if Path(name).name.startswith(".")]


def test_a_loss_that_is_not_a_number_stops_with_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    count = iter(range(1000))
    true = Categorical.expected_log_prob

    def broken(self: Categorical, outputs: Any, targets: Any) -> Any:
        return true(self, outputs, targets) * (math.nan if next(count) == 20 else 1.0)

    monkeypatch.setattr(Categorical, "expected_log_prob", broken)
    ran = bayesrule("fit", data, *FAST, "--out", tmp_path / "model")
    refused(ran, 1, "loss is not finite at step 20", "Got: ", "smaller learning rate|extreme values")
    assert "training/checkpoint.safetensors" in files(tmp_path / "model")
    monkeypatch.undo()
    assert bayesrule("fit", data, *FAST, "--out", tmp_path / "model", "--resume", "--quiet").code == 0


BAD_ROWS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "text among numbers": (
        lambda frame: frame.astype({"size": object}).assign(size=["big", *frame["size"][1:]]),
        "'size' .*must hold numbers, as it did in training.*\nGot: 'big' in line 2",
    ),
    "an infinity": (lambda frame: frame.assign(age=math.inf), "infinite or too large"),
    "a column is lacking": (lambda frame: frame.drop(columns="age"), "lacks 1 of the columns of training: 'age'"),
}


@pytest.mark.parametrize("fault", BAD_ROWS)
def test_bad_rows_at_prediction(fault: str, model: Path, tmp_path: Path) -> None:
    spoil, message = BAD_ROWS[fault]
    data = write(spoil(classes(20)), tmp_path / "new.csv")
    refused(bayesrule("predict", model, data, "-o", tmp_path / "out.csv"), 2, message)
    assert set(files(tmp_path)) == {"new.csv"}


def test_new_categories_are_counted(model: Path, tmp_path: Path) -> None:
    data = write(classes(20).assign(colour="violet"), tmp_path / "new.csv")
    ran = bayesrule("predict", model, data, "-o", tmp_path / "out.csv")
    assert ran.code == 0
    assert "colour: 20 of 20 values of categories that training did not have" in ran.said
    assert np.isfinite(pd.read_csv(tmp_path / "out.csv")["entropy"]).all()


def test_a_fault_between_pieces_leaves_no_output(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(classes(20), tmp_path / "new.csv")
    true, calls = TabularModel.predict_frame, iter([True, False])

    def once(self: TabularModel, frame: pd.DataFrame) -> Any:
        return true(self, frame) if next(calls) else full()

    monkeypatch.setattr(TabularModel, "predict_frame", once)
    refused(bayesrule("predict", model, data, "-o", tmp_path / "out.csv", "--rows", 10), 1, "No space left on device")
    assert set(files(tmp_path)) == {"new.csv"}


def test_an_unforeseen_fault_has_no_traceback(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(classes(20), tmp_path / "new.csv")

    def broken(self: TabularModel, frame: pd.DataFrame) -> Any:
        raise ZeroDivisionError("by none")

    monkeypatch.setattr(TabularModel, "predict_frame", broken)
    words = ("predict", model, data, "-o", tmp_path / "out.csv")
    refused(bayesrule(*words), 1, "ZeroDivisionError: by none", "--debug")
    with pytest.raises(ZeroDivisionError):
        bayesrule(*words, "--debug")
    assert set(files(tmp_path)) == {"new.csv"}


def test_an_output_file_is_never_replaced_unasked(model: Path, tmp_path: Path) -> None:
    data = write(classes(20), tmp_path / "new.csv")
    out = tmp_path / "out.csv"
    out.write_text("mine")
    refused(bayesrule("predict", model, data, "-o", out), 2, "out.csv exists", "--force")
    assert out.read_text() == "mine"
    refused(bayesrule("predict", model, data, "-o", data, "--force"), 2, "would replace the data")
    refused(bayesrule("predict", model, data, "-o", tmp_path, "--force"), 2, "not a plain file")
    refused(bayesrule("predict", model, data, "-o", tmp_path / "no" / "out.csv"), 2, "There is no folder")
    refused(bayesrule("predict", model, data, "-o", tmp_path / "out.parquet"), 2, "written as CSV")
    refused(bayesrule("predict", model, data, "-o", tmp_path / "new", "--rows", 0), 2, "--rows must be at least 1")
    assert bayesrule("predict", model, data, "-o", out, "--force").code == 0
    assert len(pd.read_csv(out)) == 20


BAD_MODELS: dict[str, Callable[[Path], object]] = {
    "absent": shutil.rmtree,
    "empty": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    "cut short": lambda folder: os.truncate(folder / "model.safetensors", 300),
    "not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "foreign": lambda folder: (folder / "config.json").write_text(json.dumps({"format": "other"})),
    "one bit": lambda folder: _flip(folder / "model.safetensors"),
}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("fault", BAD_MODELS)
def test_a_bad_model_folder(fault: str, model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    BAD_MODELS[fault](copy)
    data = write(classes(20), tmp_path / "new.csv")
    for ran in (
        bayesrule("predict", copy, data, "-o", tmp_path / "out.csv"),
        bayesrule("compress", copy, "--rank", 1, "-o", tmp_path / "lean"),
    ):
        refused(ran, 2, str(copy), "Got: ")
    assert not (tmp_path / "out.csv").exists()
    assert not (tmp_path / "lean").exists()


def test_compress_refuses_what_it_cannot_do(model: Path, tmp_path: Path) -> None:
    lean = tmp_path / "lean"
    refused(bayesrule("compress", model, "--rank", 99, "-o", lean), 2, "rank is too large", "at most 6")
    refused(bayesrule("compress", model, "--rank", 0, "-o", lean), 2, "whole number from 1 on", "Got: 0")
    refused(bayesrule("compress", model, "--rank", 1, "-o", model), 2, "would replace the model")
    data = write(numbers(), tmp_path / "other.csv")
    refused(bayesrule("compress", model, "--rank", 1, "-o", lean, "--data", data), 2, "no column 'kind'")
    assert not lean.exists()
