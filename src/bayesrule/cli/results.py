"""Tables at the end of a command."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from bayesrule.report import Method
from bayesrule.report.comparison import Metric, comparison_rows


def methods_table(methods: Sequence[Method], columns: Sequence[Metric], *, title: str) -> Table:
    """Methods below each other, the best of each column in bold."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for heading in (*(column.name for column in columns), "Parameters", "Time"):
        table.add_column(heading, justify="right")
    for row in comparison_rows(methods, columns):
        cells = [f"[bold]{cell.words}[/]" if cell.best else cell.words for cell in row.cells]
        table.add_row(row.name, *cells, row.parameters, row.seconds)
    return table


def before_and_after(rows: Sequence[tuple[str, str, str]]) -> Table:
    """What changed, quantity by quantity."""
    table = Table("", "before", "after")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table
