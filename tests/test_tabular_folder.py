"""Models of tables written and read back: the same to the last bit, or refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.nn import ModelFolderError
from bayesrule.nn.model_folder import read_folder, write_folder
from bayesrule.train.members import point_estimate
from bayesrule.train.tabular import TabularModel, fit_table
from tabular_cases import SETTINGS, Fitted, classification, regression, table


@pytest.fixture(name="regression")
def fitted_regression() -> Fitted:
    return regression()


@pytest.fixture(name="classification")
def fitted_classification() -> Fitted:
    return classification()


@pytest.fixture(params=[regression, classification], ids=["regression", "classification"])
def fitted(request: pytest.FixtureRequest) -> Fitted:
    return request.param()


def test_a_model_read_back_predicts_the_same_to_the_last_bit(fitted: Fitted, tmp_path: Path) -> None:
    model, fit = fitted
    folder = model.save(tmp_path / "m")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "metrics.json", "model.safetensors"]
    assert json.loads((folder / "metrics.json").read_text()) == fit.metrics
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    loaded = br.load(folder)
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(loaded.predictive(fit.test_frame).outputs, model.predictive(fit.test_frame).outputs)
    pd.testing.assert_frame_equal(
        loaded.predict_frame(fit.test_frame)[0], model.predict_frame(fit.test_frame)[0], check_exact=True
    )
    assert (loaded.encoder, loaded.target, loaded.task, loaded.info) == (
        model.encoder, model.target, model.task, model.info,
    )  # fmt: skip
    assert loaded.members.settings == model.members.settings
    assert (loaded.save(tmp_path / "again") / "config.json").read_text() == (folder / "config.json").read_text()


def test_a_fit_done_again_gives_the_same_files_whatever_the_time_it_took(tmp_path: Path) -> None:
    folders = []
    for seconds in (1.5, 2.5):
        model, fit = fit_table(table().drop(columns="price"), "kind", settings=SETTINGS)
        model.info["metrics"] = {**fit.metrics, "seconds": seconds}
        folders.append(model.save(tmp_path / str(seconds)))
        assert json.loads((folders[-1] / "metrics.json").read_text()) == model.info["metrics"]
    for name in ("model.safetensors", "config.json"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second, name


def test_members_of_different_make_are_read_back(classification: Fitted, tmp_path: Path) -> None:
    model, fit = classification
    members = list(model.members.members)
    members[0] = br.compress(members[0], rank=1)  # type: ignore[arg-type]
    mixed = type(model.members)(members, model.members.likelihood, model.members.shares, model.members.settings)
    changed = TabularModel(model.encoder, model.target, mixed, model.task, model.target_name, model.info)
    loaded = br.load(changed.save(tmp_path / "m"))
    assert torch.equal(loaded.predictive(fit.test_frame).outputs, changed.predictive(fit.test_frame).outputs)
    assert str(loaded.members.members[0].conversion) == str(members[0].conversion)


def test_a_point_estimate_is_read_back(tmp_path: Path) -> None:
    model, fit = fit_table(table().drop(columns="kind"), "price", settings=point_estimate(SETTINGS))
    loaded = TabularModel.load(model.save(tmp_path / "m"))
    assert torch.equal(loaded.predictive(fit.test_frame).outputs, model.predictive(fit.test_frame).outputs)


def damage(folder: Path, entry: str, value: object) -> None:
    """A folder that is whole by its digest, with one entry of its configuration replaced."""
    config, tensors = read_folder(folder, "tabular")
    write_folder(folder, {**config, entry: value}, tensors, "tabular")


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("task", "clustering"), ("task", "regression"), ("target_name", "other"), ("settings", {"hidden": "x"}),
        ("settings", None), ("likelihood", {"name": "Gaussian", "std": -1}), ("encoder", {"columns": []}),
        ("target", {"task": "classification", "name": "kind", "classes": ["a", "b", "c"]}), ("recipes", []),
        ("members", [0]), ("members", ["a"]), ("members", []), ("info", []),
    ],
)  # fmt: skip
def test_a_configuration_that_makes_no_sense_is_refused(
    classification: Fitted, entry: str, value: object, tmp_path: Path
) -> None:
    folder = classification[0].save(tmp_path / "m")
    damage(folder, entry, value)
    with pytest.raises(ModelFolderError):
        br.load(folder)


def test_a_flipped_bit_is_found(classification: Fitted, tmp_path: Path) -> None:
    folder = classification[0].save(tmp_path / "m")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-5] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelFolderError, match="damaged"):
        br.load(folder)


def test_a_missing_file_is_named(classification: Fitted, tmp_path: Path) -> None:
    folder = classification[0].save(tmp_path / "m")
    (folder / "config.json").unlink()
    with pytest.raises(ModelFolderError, match=r"no config\.json"):
        br.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(ModelFolderError, match="not a model folder"):
        br.load(folder)


def test_the_two_kinds_of_folders_are_told_apart(classification: Fitted, tmp_path: Path) -> None:
    tabular = classification[0].save(tmp_path / "table")
    network = br.save(br.bayesianize(nn.Linear(2, 1)), tmp_path / "network")
    with pytest.raises(InvalidArgument, match="Leave it out"):
        br.load(tabular, into=nn.Linear(2, 1))
    with pytest.raises(InvalidArgument, match="into=network"):
        br.load(network)
    with pytest.raises(ModelFolderError, match="another kind"):
        TabularModel.load(network)
    config, tensors = read_folder(network)
    write_folder(network, {**config, "kind": "picture"}, tensors)
    with pytest.raises(ModelFolderError, match="no known kind"):
        br.load(network, into=nn.Linear(2, 1))
