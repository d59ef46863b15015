"""Where data files lie, and how a missing one is had."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesrule.errors import BayesruleError


class DataNotFound(BayesruleError, FileNotFoundError):  # noqa: N818, the base says it is an error
    """A data file is neither here nor to be had."""


@dataclass(frozen=True)
class DataFile:
    """A file by its place under a data folder.

    Attributes:
        path: Relative to the data folder.
        sha256: Of its content; checked when it is downloaded.
        url: Where to download it from, if anywhere.
    """

    path: str
    sha256: str = ""
    url: str = ""


def search_path(data: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders to look in: the one given, ``$BAYESRULE_DATA``, then the user's cache."""
    given = [Path(data)] if data is not None else []
    environment = [Path(os.environ["BAYESRULE_DATA"])] if os.environ.get("BAYESRULE_DATA") else []
    return [*given, *environment, cache_folder()]


def cache_folder() -> Path:
    """The user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bayesrule"


def locate(file: DataFile, data: str | os.PathLike[str] | None = None) -> Path:
    """The file's path: found, or downloaded into the cache.

    Args:
        file: Which file. A name without ``.gz`` is also found with it.
        data: The folder to look in first.
    """
    for folder in search_path(data):
        if (path := _found(file, folder)) is not None:
            return path
    if file.url:
        return _download(file, data)
    raise _missing(file, data, "it has no download")


def locate_one_form(forms: Sequence[Sequence[DataFile]], data: str | os.PathLike[str] | None = None) -> list[Path]:
    """The paths of a set that is published in several forms: of the first form that the first folder has whole.

    Args:
        forms: The files of each form. The last is the one to download, and to ask for.
        data: The folder to look in first.
    """
    for folder in search_path(data):
        for form in forms:
            paths = [path for file in form if (path := _found(file, folder)) is not None]
            if len(paths) == len(form):
                return paths
    try:
        return [locate(file, data) for file in forms[-1]]
    except DataNotFound as error:
        others = "; or ".join(", ".join(file.path for file in form) for form in forms[:-1])
        remedy = f"{error.remedy} In its place may be put: {others}."
        raise DataNotFound(error.what, got=error.got, remedy=remedy) from error


def _found(file: DataFile, folder: Path) -> Path | None:
    paths = (folder / name for name in (file.path, file.path + ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _missing(file: DataFile, data: str | os.PathLike[str] | None, reason: str) -> DataNotFound:
    return DataNotFound(
        f"The data file {file.path} was not found, and {reason}",
        got=f"looked in {', '.join(map(str, search_path(data)))}",
        remedy=f"Put it at {cache_folder() / file.path}, or name its folder by --data or $BAYESRULE_DATA.",
    )


def _download(file: DataFile, data: str | os.PathLike[str] | None) -> Path:
    try:
        import pooch
    except ImportError as error:
        raise _missing(file, data, "downloads need the package pooch (pip install 'bayesrule[data]')") from error
    target = cache_folder() / (file.path + ".gz" if file.url.endswith(".gz") else file.path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pooch.retrieve(file.url, known_hash=f"sha256:{file.sha256}", fname=target.name, path=target.parent)
    except Exception as error:  # whatever a network client raises, the remedy is the same
        raise _missing(file, data, f"its download failed ({error})") from error
    return target
