"""``bayesrule prune``: the same model without the weights that are noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from bayesrule.cli.onnx_export import NAME, onnx_bytes, require_onnx
from bayesrule.cli.outputs import new_model_folder
from bayesrule.cli.pruned_members import pruned_member
from bayesrule.cli.results import before_and_after
from bayesrule.cli.rivals import networks
from bayesrule.cli.smaller_model import bytes_line, measured, rows_to_measure, table_model, told
from bayesrule.errors import InvalidArgument
from bayesrule.nn.model_folder import write_atomically
from bayesrule.prune import Pruning
from bayesrule.prune.measuring import processor_seconds
from bayesrule.report.numbers import count
from bayesrule.train.members import Members
from bayesrule.train.tabular import TabularModel

ROWS = 64
"""Of the predictions that are timed."""


def prune_model(
    console: Console,
    folder: Path,
    out: Path,
    *,
    threshold: float | None = None,
    target_sparsity: float | None = None,
    onnx: bool = False,
    data: str | None = None,
    force: bool = False,
) -> None:
    """Write a new model folder, and say what it saves and costs."""
    if out.exists() and folder.exists() and out.samefile(folder):
        raise InvalidArgument("The pruned model would replace the model", got=out, remedy="Give -o another name.")
    if onnx:
        require_onnx()
    model = table_model(folder, "prunes", "br.prune(br.load(folder, into=network))")
    table = None if data is None else rows_to_measure(data, model)
    small, prunings = pruned_model(model, threshold, target_sparsity)
    measures = measured(model, small, table)
    graph = onnx_bytes(small) if onnx else None
    with new_model_folder(out, force=force):
        (out / NAME).unlink(missing_ok=True)  # of a model that is replaced
        small.save(out)
        if graph is not None:
            write_atomically(out / NAME, graph)
    console.print(
        before_and_after([*_size_rows(prunings), *_cost_rows(model, small), bytes_line(folder, out), *measures])
    )
    console.print(told(table, data))
    console.print(_dropped(prunings))
    console.print(f"Model: {out}")


def pruned_model(
    model: TabularModel, threshold: float | None, target_sparsity: float | None
) -> tuple[TabularModel, list[Pruning]]:
    """The model with pruned members, and what was done to each of them."""
    every = model.members
    lean, prunings = zip(
        *(pruned_member(member, threshold, target_sparsity) for member in networks(model)), strict=True
    )
    members = Members(list(lean), every.likelihood, every.shares.clone(), every.settings)
    numbers = sum(member.conversion.numbers for member in lean)
    # The measures of the model before are not those of this one.
    info = {**model.info, "metrics": {}, "parameters": numbers, "weights_left": sum(each.left for each in prunings)}
    return replace(model, members=members, info=info), list(prunings)


def _dropped(prunings: Sequence[Pruning]) -> str:
    every = sum(pruning.weights for pruning in prunings)
    dropped = every - sum(pruning.left for pruning in prunings)
    zeros = sum(pruning.zeros_before for pruning in prunings)
    before = f"; {count(zeros)} were zero before" if zeros else ""
    return f"Weights dropped: {count(dropped)} of {count(every)} ({100 * dropped / every:.1f} %){before}."


def _size_rows(prunings: Sequence[Pruning]) -> list[tuple[str, str, str]]:
    hidden = [[[row.shape[1], row.shape_after[1]] for row in pruning.rows[:-1]] for pruning in prunings]
    units = torch.tensor(hidden).reshape(-1, 2).sum(0).tolist()
    weights = sum(pruning.before.weights for pruning in prunings), sum(pruning.after.weights for pruning in prunings)
    return [("Hidden units", *map(count, units)), ("Weights", *map(count, weights))]  # type: ignore[list-item]


def _cost_rows(before: TabularModel, after: TabularModel) -> list[tuple[str, str, str]]:
    numbers = [sum(member.conversion.numbers for member in networks(model)) for model in (before, after)]
    times = _seconds([before, after])
    return [
        ("Numbers", *map(count, numbers)),  # type: ignore[list-item]
        (f"ms for {ROWS} rows, one CPU thread", *(f"{1e3 * each:.3g}" for each in times)),  # type: ignore[list-item]
    ]


def _seconds(models: Sequence[TabularModel]) -> list[float]:
    """Median processor time of a prediction, as `processor_seconds` takes it."""
    x = torch.randn(ROWS, len(models[0].encoder.feature_names), generator=torch.Generator().manual_seed(0))
    return processor_seconds([partial(model.members.predictive, x) for model in models])
