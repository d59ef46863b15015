"""Which data sets there are, and why one is not."""

from __future__ import annotations

from pathlib import Path

from bayesrule.data.uci import uci_names
from bayesrule.experiments.context import Context
from bayesrule.experiments.tabular_data import UCI, Table, real_table, synthetic_table

YEAR = "year"
ABSENT = "the set of 515,345 songs does not come with the others; put it into the data folder as uci/year.npz"


def known_sets(data: Path | None) -> list[str]:
    """The paper's that are to be had, Year, and any other regression that lies in the data folders."""
    standard = [*UCI, YEAR]
    return standard + [name for name in uci_names(data) if name not in standard]


def tables(context: Context) -> list[Table]:
    """Those asked for, all read before any work; Year is left out, with a word, where it is absent."""
    found = []
    for name in context.datasets:
        if name == YEAR and not context.preset.synthetic and YEAR not in uci_names(context.data):
            context.skipped += [f"{method} on {name}: {ABSENT}" for method in context.methods]
        else:
            found.append(synthetic_table(name) if context.preset.synthetic else real_table(name, context.data))
    return found


def splits_of(context: Context, table: Table) -> int:
    """How many of its splits the preset uses."""
    return min(len(table.splits), context.preset.settings["splits"])
