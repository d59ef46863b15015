"""Built-in sets are scikit-learn's rows, and UCI files are read whole or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets

from bayesrule import data
from bayesrule.data import (
    BUILTIN,
    DataNotFound,
    Encoder,
    UCISet,
    builtin,
    recognise_target,
    separate_target,
    uci,
    uci_names,
)
from bayesrule.errors import InvalidArgument, Unsupported


@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_sets_are_scikit_learns(name: str) -> None:
    stored = builtin(name)
    load = getattr(datasets, "load_" + name.replace("-", "_"))
    oracle = load(scaled=False) if name == "diabetes" else load()
    features, target, without = separate_target(stored.frame, stored.target)
    assert without == 0
    assert np.array_equal(features.to_numpy(), oracle.data)
    if stored.task == "classification":
        assert target.tolist() == [str(oracle.target_names[label]) for label in oracle.target]
    else:
        assert np.array_equal(target.to_numpy(), oracle.target)
    assert recognise_target(target).task == stored.task
    assert len(Encoder.fit(features).columns) == (61 if name == "digits" else features.shape[1])


def test_digits_come_first_and_are_images() -> None:
    stored = builtin()
    assert stored.name == "digits"
    assert stored.image == (8, 8)
    images = stored.frame.drop(columns=stored.target).to_numpy().reshape(-1, *stored.image)
    assert np.array_equal(images, datasets.load_digits().images)


def test_an_unknown_set_is_answered_by_the_nearest() -> None:
    with pytest.raises(
        InvalidArgument, match=r"'breast_cancer'. Did you mean 'breast-cancer'\? Known: digits, diabetes"
    ):
        builtin("breast_cancer")


def arrays(rows: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    orders = np.stack([rng.permutation(rows) for _ in range(3)]).astype(np.uint16)
    return {
        "x": rng.normal(size=(rows, 2)),
        "y": rng.normal(size=rows),
        "feature_names": np.array(["a", "b"]),
        "target_name": np.array("c"),
        "train_index": orders[:, 2:],
        "test_index": orders[:, :2],
    }


def store(folder: Path, name: str = "mine", **changes: np.ndarray | None) -> Path:
    (folder / "uci").mkdir(exist_ok=True)
    kept = {key: value for key, value in {**arrays(), **changes}.items() if value is not None}
    np.savez(folder / "uci" / f"{name}.npz", **kept)
    return folder


def test_a_stored_set_is_found_by_its_name(tmp_path: Path) -> None:
    stored = uci("mine", store(tmp_path))
    assert isinstance(stored, UCISet)
    for name, value in arrays().items():
        assert np.array_equal(getattr(stored, name), value)
    assert stored.train_index.dtype == np.int64
    assert "mine" in uci_names(tmp_path)


def test_a_set_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    store(tmp_path, "yacht")
    with pytest.raises(DataNotFound, match=r"uci/yach.npz was not found.*Did you mean 'yacht'\? There are: yacht"):
        uci("yach", tmp_path)
    with pytest.raises(DataNotFound, match=r"uci/yacht\.npz was not found"):
        uci("yacht")
    for name in ("../yacht", "a/b", ""):
        with pytest.raises(InvalidArgument, match="plain file name"):
            uci(name, tmp_path)


NOT_FINITE = arrays()["x"] + np.array([np.nan, 0.0])
FAULTS: dict[str, dict[str, np.ndarray | None]] = {
    "no target": {"y": None},
    "no splits": {"train_index": None},
    "no names": {"feature_names": None},
    "not finite": {"x": NOT_FINITE},
    "text": {"x": np.array([["a", "b"]] * 12)},
    "too few targets": {"y": np.zeros(11)},
    "too few names": {"feature_names": np.array(["a"])},
    "repeated names": {"feature_names": np.array(["a", "a"])},
    "a row twice": {"test_index": arrays()["train_index"][:, :2]},
    "a row too many": {"test_index": arrays()["test_index"] + 50},
    "different numbers of splits": {"test_index": arrays()["test_index"][:2]},
    "objects": {"y": np.array([object()] * 12)},
    "no dimensions": {"x": np.array(3.0)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_set_is_refused(tmp_path: Path, fault: str) -> None:
    with pytest.raises(InvalidArgument, match=r"damaged|not a data set of the UCI form"):
        uci("mine", store(tmp_path, **FAULTS[fault]))


def test_files_that_are_not_archives_are_refused(tmp_path: Path) -> None:
    whole = (store(tmp_path) / "uci" / "mine.npz").read_bytes()
    for content in (b"", b"junk", whole[:200], whole[:-40], whole[:60] + b"\xff" * 30 + whole[90:]):
        (tmp_path / "uci" / "mine.npz").write_bytes(content)
        with pytest.raises(InvalidArgument, match="not a data set of the UCI form"):
            uci("mine", tmp_path)


def test_every_name_is_exported_and_no_other() -> None:
    for name in data.__all__:
        assert getattr(data, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        data.nonsense  # noqa: B018


def test_pandas_is_imported_only_when_asked_for() -> None:
    script = "import sys, bayesrule.data; assert 'pandas' not in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_pandas_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(data.__dict__, "read_table", raising=False)
    monkeypatch.delitem(sys.modules, "bayesrule.data.tables", raising=False)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Unsupported, match=r"read_table needs the package pandas. pip install 'bayesrule\[tabular\]'"):
        data.read_table  # noqa: B018
