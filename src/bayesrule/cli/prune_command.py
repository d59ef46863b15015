"""``bayesrule prune``: the same model without the weights that are noise."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from bayesrule.cli.compress_command import bytes_row, measure_rows
from bayesrule.cli.onnx_export import NAME, onnx_bytes, require_onnx
from bayesrule.cli.outputs import new_model_folder
from bayesrule.cli.pruned_members import pruned_member
from bayesrule.cli.results import before_and_after
from bayesrule.cli.rivals import networks
from bayesrule.cli.sources import load_source
from bayesrule.data import separate_target
from bayesrule.errors import InvalidArgument
from bayesrule.nn.model_folder import write_atomically
from bayesrule.prune import Pruning
from bayesrule.report.numbers import count
from bayesrule.train.members import Members
from bayesrule.train.tabular import TabularModel

ROWS, REPEATS = 256, 5


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
    model = TabularModel.load(folder)
    table = None if data is None else separate_target(load_source(data, model.target_name).frame, model.target_name)
    small, prunings = pruned_model(model, threshold, target_sparsity)
    measured = None
    if table is not None:
        measured = [each.evaluate(table.features, table.target) for each in (model, small)]
        small.info["metrics"] = measured[1]
    graph = onnx_bytes(small) if onnx else None
    with new_model_folder(out, force=force):
        (out / NAME).unlink(missing_ok=True)  # of a model that is replaced
        small.save(out)
        if graph is not None:
            write_atomically(out / NAME, graph)
    rows = [*_size_rows(prunings), *_cost_rows(model, small), bytes_row(folder, out)]
    if measured:
        rows += measure_rows(model.task, *measured)
    console.print(before_and_after(rows))
    dropped, every = (sum(counts) for counts in zip(*((p.weights - p.left, p.weights) for p in prunings), strict=True))
    console.print(f"Weights dropped: {count(dropped)} of {count(every)} ({100 * dropped / every:.1f} %).")
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
        (f"ms for {ROWS} rows", *(f"{1e3 * each:.3g}" for each in times)),  # type: ignore[list-item]
    ]


def _seconds(models: Sequence[TabularModel]) -> list[float]:
    """Median time of a prediction; the models take turns, so that a busy moment hits both."""
    x = torch.randn(ROWS, len(models[0].encoder.feature_names), generator=torch.Generator().manual_seed(0))
    times: list[list[float]] = [[] for _ in models]
    for repeat in range(REPEATS + 1):
        for model, kept in zip(models, times, strict=True):
            start = time.perf_counter()
            model.members.predictive(x)
            if repeat:  # the first warms up
                kept.append(time.perf_counter() - start)
    return [statistics.median(kept) for kept in times]
