"""``bayesrule compress``: the same model with standard deviations of low rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bayesrule.cli.outputs import new_model_folder
from bayesrule.cli.results import before_and_after
from bayesrule.cli.rivals import networks
from bayesrule.cli.smaller_model import bytes_line, measured, rows_to_measure, table_model, told
from bayesrule.compress import compress
from bayesrule.errors import InvalidArgument
from bayesrule.report.numbers import count
from bayesrule.train.members import Members


def compress_model(
    console: Console, folder: Path, out: Path, *, rank: int, data: str | None = None, force: bool = False
) -> None:
    """Write a new model folder, and say what it saves and costs."""
    if out.exists() and folder.exists() and out.samefile(folder):
        raise InvalidArgument("The compressed model would replace the model", got=out, remedy="Give -o another name.")
    model = table_model(folder, "compresses", "br.compress(br.load(folder, into=network), rank)")
    table = None if data is None else rows_to_measure(data, model)
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
    measures = measured(model, small, table)
    with new_model_folder(out, force=force):
        small.save(out)
    console.print(
        before_and_after([("Numbers", count(numbers[0]), count(numbers[1])), bytes_line(folder, out), *measures])
    )
    console.print(told(table, data))
    for line in sorted({f"{row.name}: kept, {row.note}." for member in lean for row in member.compression if row.note}):
        console.print(line)
    console.print(f"Model: {out}")
