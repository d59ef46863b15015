"""What ``bayesrule prune`` reads: a model of a table, and rows to measure it on."""

from __future__ import annotations

from pathlib import Path

from bayesrule.cli.sources import load_source
from bayesrule.data import separate_target
from bayesrule.data.columns import BadTable
from bayesrule.data.targets import Separated
from bayesrule.errors import InvalidArgument
from bayesrule.nn.model_folder import CONFIG, TENSORS, kind_of
from bayesrule.train.tabular import TabularModel

OWN = "for a network of your own, in Python: br.prune(br.load(folder, into=network))"


def table_model(folder: Path) -> TabularModel:
    """A model that ``bayesrule fit`` wrote; other folders are refused with what to do about them."""
    remedy = f"Give a folder written by bayesrule fit (or compress, or prune); {OWN}."
    if folder.is_file():
        raise InvalidArgument(f"{folder} is a file, not a folder", got=folder.name, remedy=remedy)
    if missing := [name for name in (TENSORS, CONFIG) if not (folder / name).is_file()]:
        content = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else "no such folder"
        raise InvalidArgument(f"{folder} is not a model folder: it has no {missing[0]}", got=content, remedy=remedy)
    if kind_of(folder) == "module":
        raise InvalidArgument(
            f"This command prunes models of tables, and {folder} holds another network", got="a model of br.save",
            remedy=f"{OWN[0].upper()}{OWN[1:]}.",
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
