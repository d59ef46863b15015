"""``bayesrule compress``: the same model with standard deviations of low rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bayesrule.cli.outputs import new_model_folder
from bayesrule.cli.results import before_and_after
from bayesrule.cli.rivals import networks
from bayesrule.cli.sources import load_source
from bayesrule.compress import compress
from bayesrule.data import separate_target
from bayesrule.errors import InvalidArgument
from bayesrule.nn.model_folder import TENSORS
from bayesrule.report.comparison import CLASSIFICATION, REGRESSION
from bayesrule.report.numbers import count
from bayesrule.train.members import Members
from bayesrule.train.tabular import TabularModel


def compress_model(
    console: Console, folder: Path, out: Path, *, rank: int, data: str | None = None, force: bool = False
) -> None:
    """Write a new model folder, and say what it saves and costs."""
    if out.exists() and folder.exists() and out.samefile(folder):
        raise InvalidArgument("The compressed model would replace the model", got=out, remedy="Give -o another name.")
    model = TabularModel.load(folder)
    table = None if data is None else separate_target(load_source(data, model.target_name).frame, model.target_name)
    every = model.members
    lean = [compress(member, rank) for member in networks(model)]
    members = Members(lean, every.likelihood, every.shares.clone(), every.settings)
    numbers = (
        sum(member.compression.numbers_before for member in lean),
        sum(member.compression.numbers_after for member in lean),
    )
    # The measures of the model before are not those of this one.
    info = {**model.info, "metrics": {}, "parameters": numbers[1], "compressed_to_rank": rank}
    small = replace(model, members=members, info=info)
    measured = None
    if table is not None:
        measured = [each.evaluate(table.features, table.target) for each in (model, small)]
        small.info["metrics"] = measured[1]
    with new_model_folder(out, force=force):
        small.save(out)
    rows = [("Numbers", count(numbers[0]), count(numbers[1])), bytes_row(folder, out)]
    if measured:
        rows += measure_rows(model.task, *measured)
    console.print(before_and_after(rows))
    for line in sorted({f"{row.name}: kept, {row.note}." for member in lean for row in member.compression if row.note}):
        console.print(line)
    console.print(f"Model: {out}")


def bytes_row(before: Path, after: Path) -> tuple[str, str, str]:
    """What the tensors take on disk."""
    return ("Bytes", *(count((folder / TENSORS).stat().st_size) for folder in (before, after)))  # type: ignore[return-value]


def measure_rows(task: str, before: Mapping[str, float], after: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """What both models are worth on the same rows."""
    columns = CLASSIFICATION if task == "classification" else REGRESSION
    return [(column.name, column.words(before[column.key]), column.words(after[column.key])) for column in columns]
