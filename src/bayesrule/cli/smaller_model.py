"""What the commands that make a model smaller share: reading it, measuring both on rows of a table, telling."""

from __future__ import annotations

from pathlib import Path

from bayesrule.cli.sources import load_source
from bayesrule.data import separate_target
from bayesrule.data.columns import BadTable
from bayesrule.data.targets import Separated
from bayesrule.errors import InvalidArgument
from bayesrule.nn.model_folder import CONFIG, TENSORS, kind_of
from bayesrule.report.comparison import CLASSIFICATION, REGRESSION
from bayesrule.report.numbers import count
from bayesrule.train.tabular import TabularModel

Lines = list[tuple[str, str, str]]
"""Of a table: what, before, after."""


def table_model(folder: Path, verb: str, own: str) -> TabularModel:
    """A model that ``bayesrule fit`` wrote; other folders are refused with what to do about them.

    Args:
        folder: Of the model.
        verb: What the command does to it.
        own: The same in Python, for another network.
    """
    own = f"for a network of your own, in Python: {own}"
    remedy = f"Give a folder written by bayesrule fit (or compress, or prune); {own}."
    if folder.is_file():
        raise InvalidArgument(f"{folder} is a file, not a folder", got=folder.name, remedy=remedy)
    if missing := [name for name in (TENSORS, CONFIG) if not (folder / name).is_file()]:
        content = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else "no such folder"
        raise InvalidArgument(f"{folder} is not a model folder: it has no {missing[0]}", got=content, remedy=remedy)
    if kind_of(folder) == "module":
        raise InvalidArgument(
            f"This command {verb} models of tables, and {folder} holds another network", got="a model of br.save",
            remedy=f"{own[0].upper()}{own[1:]}.",
        )  # fmt: skip
    return TabularModel.load(folder)


def rows_to_measure(data: str, model: TabularModel) -> Separated:
    """The rows of a table that have the model's target."""
    frame = load_source(data, model.target_name).frame
    try:
        return separate_target(frame, model.target_name)
    except BadTable as error:
        raise BadTable(
            f"Rows to measure a model on need its target, {model.target_name!r}: {error.what}", got=error.got,
            remedy="Give a table with the columns that the model was fitted on.",
        ) from error  # fmt: skip


def measured(before: TabularModel, after: TabularModel, table: Separated | None) -> Lines:
    """What both are worth on the same rows, if there are any; the smaller one's measures are kept with it."""
    if table is None:
        return []
    old, new = (each.evaluate(table.features, table.target) for each in (before, after))
    # They are not those of rows kept back, which fit calls test_….
    after.info["metrics"] = {f"data_{name.removeprefix('test_')}": value for name, value in new.items()}
    columns = CLASSIFICATION if before.task == "classification" else REGRESSION
    return [(column.name, column.words(old[column.key]), column.words(new[column.key])) for column in columns]


def told(table: Separated | None, data: str | None) -> str:
    """What was measured, and what that is not."""
    if table is None:
        return "Not measured: --data DATA compares both models on rows with known targets."
    return f"Measured on all {count(len(table.target))} rows of {data}; training rows may be among them."


def bytes_line(before: Path, after: Path) -> tuple[str, str, str]:
    """What the tensors take on disk."""
    old, new = (count((folder / TENSORS).stat().st_size) for folder in (before, after))
    return "Bytes", old, new
