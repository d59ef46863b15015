"""What goes into the command and comes out of it beside CSV files and models: parquet, estimators, learning curves."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import bayesrule as br
from bayesrule.cli import options
from bayesrule.cli.display import live
from bayesrule.data import BUILTIN
from bayesrule.data.columns import as_numbers, as_text, format_number
from bayesrule.train.member_loop import Progress
from bayesrule.train.tabular import TabularModel
from command_line import FAST, bayesrule, classes, files, numbers, refused, write


@pytest.mark.parametrize("make", [classes, numbers])
def test_parquet_is_read_as_csv_is(make: object, tmp_path: Path) -> None:
    frame = make()  # type: ignore[operator]
    text, parquet = write(frame, tmp_path / "toy.csv"), tmp_path / "toy.parquet"
    frame.to_parquet(parquet)
    for data in (text, parquet):
        ran = bayesrule("fit", data, *FAST, "--test-fraction", 0, "--out", tmp_path / data.suffix[1:])
        assert ran.code == 0, ran
        assert "Data: toy, 60 rows, 3 feature columns" in ran.said
        new = tmp_path / f"new{data.suffix}"
        features = frame.drop(columns=frame.columns[-1])
        features.to_parquet(new) if data is parquet else write(features, new)
        for model in ("csv", "parquet"):
            if (tmp_path / model).exists():
                out = tmp_path / f"{model}-{data.suffix[1:]}-out.csv"
                assert bayesrule("predict", tmp_path / model, new, "-o", out).code == 0
    outputs = [path.read_bytes() for path in tmp_path.glob("*-out.csv")]
    assert len(outputs) == 3
    assert len(set(outputs)) == 1


def test_what_text_takes_for_a_blank_is_one_beside_a_number() -> None:
    written = ["1.5\x1d", "\x1f2", "\N{NO-BREAK SPACE}3 ", " ", "4"]
    found = as_numbers(written)
    assert found is not None
    assert [format_number(value) for value in found if value == value] == [cell for cell in as_text(written) if cell]


def _cut(path: Path, frame: pd.DataFrame) -> None:
    frame.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])


BAD_PARQUET = {
    "no parquet": (lambda path, frame: path.write_bytes(b"PAR1" + b"x" * 50), "not a readable parquet file"),
    "cut short": (_cut, "not a readable parquet file"),
    "no rows": (lambda path, frame: frame.iloc[:0].to_parquet(path), "too few rows"),
    "an infinity": (lambda path, frame: frame.assign(age=float("inf")).to_parquet(path), "infinite"),
}


@pytest.mark.parametrize("fault", BAD_PARQUET)
def test_a_bad_parquet_file(fault: str, tmp_path: Path) -> None:
    spoil, message = BAD_PARQUET[fault]
    data = tmp_path / "data.parquet"
    spoil(data, classes())
    refused(bayesrule("fit", data, *FAST, "--out", tmp_path / "model"), 2, message, "Got: ")
    assert [entry.name for entry in tmp_path.iterdir()] == ["data.parquet"]


@pytest.mark.parametrize("name", ["diabetes", "breast-cancer"])
def test_built_in_sets_by_name(name: str, tmp_path: Path) -> None:
    assert name in BUILTIN
    ran = bayesrule("fit", name, "--steps", 2, "--hidden", 4, "--out", tmp_path / "model")
    assert ran.code == 0, ran
    assert f"Data: {name}" in ran.said
    assert "report.html" in files(tmp_path / "model")


@pytest.mark.parametrize("name", ["local", "weight", "flipout", "auto", "mean"])
def test_estimators_by_name(name: str, tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    ran = bayesrule("fit", data, *FAST, "--estimator", name, "--out", tmp_path / "model", "--test-fraction", 0)
    assert ran.code == 0, ran
    expected = {
        "local": br.LocalReparam(), "weight": br.WeightSample(), "flipout": br.Flipout(), "auto": br.Auto(),
        "mean": br.Mean(),
    }[name]  # fmt: skip
    assert TabularModel.load(tmp_path / "model").members.settings.estimator == expected
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["settings"]["estimator"] == {"name": type(expected).__name__}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["flipuot"],
            ["no estimator 'flipuot'", "Did you mean 'flipout'", "Known: local, weight, flipout, auto, mean"],
        ),
        (["flipout:2"], ["cannot be read", "Write it as flipout"]),
        (["flipout", "--posterior", "matrix-normal"], ["independent", "MatrixNormal", "--estimator local or weight"]),
        (["flipout", "--posterior", "full"], ["independent", "--posterior diagonal or ktied:2"]),
    ],
)
def test_estimators_that_cannot_be(words: list[str], parts: list[str], tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    refused(bayesrule("fit", data, "--estimator", *words, "--out", tmp_path / "model"), 2, *parts, "Got: --estimator")
    assert set(files(tmp_path)) == {"toy.csv"}


def test_a_family_without_local_noise_says_so(tmp_path: Path) -> None:
    data = write(classes(), tmp_path / "toy.csv")
    words = ("fit", data, *FAST, "--posterior", "full", "--test-fraction", 0)
    ran = bayesrule(*words, "--out", tmp_path / "model")
    assert ran.code == 0, ran
    assert "0.weight: no local noise for Full here." in ran.said
    assert "no local noise" not in bayesrule(*words, "--estimator", "weight", "--out", tmp_path / "other").said


def test_every_estimator_has_a_name_on_the_command_line() -> None:
    public = {getattr(br, name) for name in ("Auto", "Flipout", "LocalReparam", "Mean", "WeightSample")}
    assert {type(options.estimator(name, br.Diagonal())) for name in options.ESTIMATORS} == public


def test_learning_curves_go_to_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="learning curves need TensorBoard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    data = write(classes(), tmp_path / "toy.csv")
    model = tmp_path / "model"
    ran = bayesrule("fit", data, *FAST, "--out", model)
    assert ran.code == 0
    found = EventAccumulator(str(model / "tensorboard")).Reload()
    assert set(found.Tags()["scalars"]) == {"nll", "kl_per_example", "valid_nll"}
    steps = [event.step for event in found.Scalars("nll")]
    assert steps == list(range(1, 31))  # a short training is measured at every step
    last = found.Scalars("valid_nll")[-1].value
    assert f"validation {last:.3g}" in ran.said.replace("0.0 s left", "")
    assert TabularModel.load(model).info["seed"] == 0


def test_a_new_fit_starts_new_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="learning curves need TensorBoard")
    data = write(classes(), tmp_path / "toy.csv")
    for seed in (0, 1):
        ran = bayesrule("fit", data, *FAST, "--test-fraction", 0, "--seed", seed, "--out", tmp_path / "m", "--force")
        assert ran.code == 0
    assert len([name for name in files(tmp_path / "m") if name.startswith("tensorboard")]) == 1


def test_without_tensorboard_there_are_no_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    data = write(classes(), tmp_path / "toy.csv")
    assert bayesrule("fit", data, *FAST, "--test-fraction", 0, "--out", tmp_path / "model").code == 0
    assert set(files(tmp_path / "model")) == {"model.safetensors", "config.json", "metrics.json"}


@pytest.mark.parametrize(("width", "kl"), [(80, 6.884), (80, 0.0), (110, 6.884)])
def test_the_live_display_fits_the_terminal(width: int, kl: float) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    title = "Training" if kl else "Point estimates"
    with live(console, title) as show:
        show(Progress(step=300, steps=1500, nll=0.09391, kl_per_example=kl, valid_nll=0.1931, seconds=20.0))
    shown = console.file.getvalue().replace("\N{NO-BREAK SPACE}", " ")
    scores = f"NLL 0.0939{'  KL/N 6.88' if kl else ''}  validation 0.193  1 min 20 s left"
    lines = [line for line in re.split(r"[\r\n]", shown) if scores in line]
    assert lines
    assert title in lines[-1]
    assert "…" not in lines[-1]
