"""Where results go: checked before any work is done, and written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from typing import TextIO

from bayesrule.errors import InvalidArgument
from bayesrule.nn.model_folder import CONFIG, TENSORS

METRICS, REPORT = "metrics.json", "report.html"
CHECKPOINTS = "training"
"""Folder for the state of training, inside the model folder until the model is finished."""
CURVES = "tensorboard"
"""Folder for learning curves; beside the state of training until the model is finished."""
MODEL_FILES = (CONFIG, TENSORS, METRICS)


class Standing(Enum):
    """What a model folder holds."""

    EMPTY = auto()
    STARTED = auto()
    FINISHED = auto()
    FOREIGN = auto()


def standing(folder: Path) -> Standing:
    """What it holds, or would if it existed."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return Standing.EMPTY
    if (folder / CHECKPOINTS).is_dir():
        return Standing.STARTED
    return Standing.FINISHED if any((folder / name).exists() for name in MODEL_FILES) else Standing.FOREIGN


@contextmanager
def new_model_folder(folder: Path, *, resume: bool = False, force: bool = False) -> Iterator[Path]:
    """A model folder to write into; refused if its content would be lost, and gone again if nothing came of it."""
    existed = folder.exists()
    _refuse(folder, resume=resume, force=force)
    require_writable(folder)
    if not resume:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    try:
        yield folder
    except BaseException as error:
        _say_where(error, folder)
        with suppress(OSError):  # what is not empty is worth keeping
            (folder / CHECKPOINTS).rmdir()
        if not existed:
            with suppress(OSError):
                folder.rmdir()
        raise
    shutil.rmtree(folder / CURVES, ignore_errors=True)  # of a model that was here before
    with suppress(FileNotFoundError):
        (folder / CHECKPOINTS / CURVES).rename(folder / CURVES)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _refuse(folder: Path, *, resume: bool, force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(
            f"{folder} is not a folder", got="a file of that name", remedy="Give the output another name."
        )
    found = standing(folder)
    if found is Standing.FINISHED and not force:
        raise InvalidArgument(
            f"The folder {folder} holds a model already", got="a finished model",
            remedy="Give the output another name, or replace the model with --force.",
        )  # fmt: skip
    if found is Standing.STARTED and not (resume or force):
        raise InvalidArgument(
            f"The folder {folder} holds a training that has not finished", got=f"{CHECKPOINTS} in it",
            remedy="Go on with --resume, or start anew with --force.",
        )  # fmt: skip
    if found is Standing.FOREIGN and not force:
        raise InvalidArgument(
            f"The folder {folder} exists and holds something else",
            got=", ".join(sorted(entry.name for entry in folder.iterdir())[:5]),
            remedy="Give the output another name, or write beside what is there with --force.",
        )  # fmt: skip


def require_writable(folder: Path) -> None:
    """Make the folder, and refuse one that cannot be written into."""
    probe = folder / f".{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise InvalidArgument(
            f"The folder {folder} cannot be written", got=error.strerror or error,
            remedy="Choose a folder that you may write to.",
        ) from error  # fmt: skip


def check_output_file(path: Path, source: Path, *, force: bool) -> None:
    """Refuse a result file that would replace something, or whose folder is not there."""
    if path.suffix.lower() in (".parquet", ".pq"):
        raise InvalidArgument("Predictions are written as CSV", got=path.name, remedy="Name the output out.csv.")
    if path.exists() and source.exists() and path.samefile(source):
        raise InvalidArgument("The output would replace the data", got=path, remedy="Give -o another name.")
    if path.exists() and not path.is_file():
        raise InvalidArgument(f"{path} is not a plain file", got="a folder or a device", remedy="Give -o another name.")
    if path.exists() and not force:
        raise InvalidArgument(
            f"{path} exists", got="a file of that name", remedy="Give -o another name, or replace it with --force."
        )
    if not path.parent.is_dir():
        raise InvalidArgument(
            f"There is no folder {path.parent}", got=f"-o {path}", remedy="Make the folder, or name another."
        )


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """A text file that appears under its name once everything is in it; after a fault there is nothing."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        _say_where(error, path)
        temporary.unlink(missing_ok=True)
        raise


def _say_where(error: BaseException, path: Path) -> None:
    """A full disk is noticed by a write, which knows no name."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)
