"""The UCI regression benchmark, or any data set stored in the same form, with its standard splits."""

from __future__ import annotations

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, Int64

from bayesrule.data.files import DataFile, DataNotFound, locate, search_path
from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument


@dataclass(frozen=True)
class UCISet:
    """Raw features and target, and which rows each split trains and tests on.

    Attributes:
        name: Of the set.
        x: Features.
        y: Target.
        feature_names: One per feature.
        target_name: Of the target.
        train_index: Row numbers, one line per split.
        test_index: The other rows.
    """

    name: str
    x: Float64[np.ndarray, "n d"]
    y: Float64[np.ndarray, " n"]
    feature_names: tuple[str, ...]
    target_name: str
    train_index: Int64[np.ndarray, "splits train"]
    test_index: Int64[np.ndarray, "splits test"]

    def __post_init__(self) -> None:
        n, splits = len(self.y), len(self.train_index)
        rows = np.sort(np.concatenate([self.train_index, self.test_index], axis=1), axis=1)
        faults = {
            "x and y are not finite numbers, one row each": self.x.shape[0] != n or not _finite(self.x, self.y),
            "the features are not named, each once": len(set(self.feature_names)) != self.x.shape[1],
            "a split is not all rows, each once": splits == 0
            or not np.array_equal(rows, np.tile(np.arange(n), (splits, 1))),
        }
        for fault, found in faults.items():
            if found:
                raise InvalidArgument(f"The data set {self.name} is damaged: {fault}", remedy="Get the file again.")


def uci(name: str, data: str | os.PathLike[str] | None = None) -> UCISet:
    """The set stored as ``uci/<name>.npz``.

    Args:
        name: Of the set.
        data: The folder to look in first.
    """
    if not name or Path(name).name != name:
        raise InvalidArgument("A data set's name is a plain file name", got=name)
    try:
        path = locate(DataFile(f"uci/{name}.npz"), data)
    except DataNotFound as error:
        found = uci_names(data)
        there = f" {nearest(name, found)}There are: {', '.join(found)}." if found else ""
        raise DataNotFound(error.what, got=error.got, remedy=error.remedy + there) from None
    return _load(path, name)


def uci_names(data: str | os.PathLike[str] | None = None) -> list[str]:
    """The sets that are there."""
    return sorted({path.stem for folder in search_path(data) for path in folder.glob("uci/*.npz")})


def _load(path: Path, name: str) -> UCISet:
    try:
        # Opened here: np.load leaves a file open that turns out not to be an archive.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return UCISet(
                name,
                np.asarray(stored["x"], dtype=np.float64).reshape(stored["x"].shape[0], -1),
                np.asarray(stored["y"], dtype=np.float64).reshape(-1),
                tuple(str(feature) for feature in stored["feature_names"]),
                str(stored["target_name"]),
                np.atleast_2d(stored["train_index"]).astype(np.int64),
                np.atleast_2d(stored["test_index"]).astype(np.int64),
            )
    except InvalidArgument:
        raise
    except (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidArgument(
            f"{path} is not a data set of the UCI form",
            got=error or type(error).__name__,
            remedy="It must hold x, y, feature_names, target_name, train_index and test_index.",
        ) from error


def _finite(*arrays: Float64[np.ndarray, " ..."]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)
