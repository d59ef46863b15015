"""The data a model is to be fitted on: a built-in set by its name, or a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bayesrule.data import BUILTIN, builtin, read_table
from bayesrule.errors import InvalidArgument

if TYPE_CHECKING:
    import pandas as pd

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Source:
    """A table and what is to be learned from it.

    Attributes:
        name: Of the data set, or of the file without its extension.
        frame: Features and target.
        target: The target's column.
        task: What it poses; None leaves that to be recognised.
        image: Height and width, if the features are pixels.
        note: Why this column is the target, where the user did not say.
    """

    name: str
    frame: pd.DataFrame
    target: str
    task: Task | None = None
    image: tuple[int, int] | None = None
    note: str = ""


def load_source(data: str | None, target: str | None = None, task: Task | None = None) -> Source:
    """Read what a command line names.

    Args:
        data: A built-in set's name, or a file; None is the first built-in set.
        target: The target's column; by default the set's own, or the file's last.
        task: What the target poses, if it is not to be recognised.
    """
    if data is None:
        data = next(iter(BUILTIN))
    if data in BUILTIN and not Path(data).is_file():
        known = builtin(data)
        own = target is None or target == known.target
        return Source(known.name, known.frame, target or known.target, task, known.image if own else None)
    if not Path(data).exists() and not Path(data).suffix and len(Path(data).parts) == 1:
        _refuse_name(data)
    frame = read_table(data)
    last = str(frame.columns[-1])
    note = "" if target is not None else f"the last column; --target names another of the {frame.shape[1]}"
    return Source(Path(data).stem, frame, target or last, task, note=note)


def _refuse_name(data: str) -> None:
    try:
        builtin(data)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"There is neither a file nor a built-in data set {data!r}", got=f"DATA {data}",
            remedy=f"{error.remedy} Or give a CSV or parquet file.",
        ) from None  # fmt: skip
