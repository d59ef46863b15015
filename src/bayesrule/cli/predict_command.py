"""``bayesrule predict``: a file in, a file of predictions out, a piece at a time."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from bayesrule.cli.options import at_least
from bayesrule.cli.outputs import check_output_file, written_whole
from bayesrule.data import EncodingReport, iterate_table
from bayesrule.report.numbers import plural
from bayesrule.train.tabular import TabularModel

ROWS = 2000
"""Rows in memory at a time."""


def predict_file(console: Console, folder: Path, data: Path, output: Path, *, rows: int = ROWS, force: bool) -> None:
    """Write one line of predictions for each row of a table."""
    at_least(1, "--rows", rows)
    check_output_file(output, data, force=force)
    model = TabularModel.load(folder)
    pieces = iterate_table(data, rows=rows, kinds=model.encoder.kinds)
    noticed = EncodingReport()
    with written_whole(output) as file:
        for number, piece in enumerate(pieces):
            predictions, report = model.predict_frame(piece)
            predictions.to_csv(file, header=number == 0, index=False, lineterminator="\n")
            noticed = noticed + report
    console.print(f"{plural(noticed.rows, 'row')} predicted: {output}")
    for line in noticed.lines():
        console.print(line)
