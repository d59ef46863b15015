"""What each choice of the default model of a table contributes: one of them changed at a time, on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.rivals.method import Task
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular import one_thread
from bayesrule.experiments.tabular_data import Split, Table, real_table, synthetic_table, task_of
from bayesrule.experiments.tabular_scores import scores
from bayesrule.priors import LearnedNormal
from bayesrule.train.calibration import Calibration, calibrate
from bayesrule.train.member_loop import MemberLoop
from bayesrule.train.members import Members, Settings, pooled, trained_loop

VALIDATION = 0.15
"""The last part of a split's training rows; its test rows are not looked at."""
SETS = ("boston", "concrete", "energy", "yacht", "diabetes", "digits", "breast-cancer", "wine")
DEFAULT = "default"
Reading = Callable[[MemberLoop], Members]
"""What is made of trained members."""


def _kinds(loop: MemberLoop) -> int:
    return len(loop.settings.temperatures)


def _read(loop: MemberLoop, found: Calibration, kinds: slice = slice(None), folds: slice = slice(None)) -> Members:
    members = np.array(loop.stacked.members, dtype=object).reshape(_kinds(loop), loop.settings.folds)[kinds, folds]
    return pooled(list(members.flatten()), loop.likelihood, found, loop.settings)


def _as_it_is(loop: MemberLoop) -> Members:
    return _read(loop, calibrate(loop.held_out_log_densities, _kinds(loop), loop.settings.folds))


def _uncorrected(loop: MemberLoop) -> Members:
    """As if the final ensemble were no larger than the mixture of held-out members."""
    return _read(loop, calibrate(loop.held_out_log_densities, _kinds(loop), folds=1))


def _uncalibrated(loop: MemberLoop) -> Members:
    kinds = _kinds(loop)
    return _read(loop, Calibration(torch.zeros(kinds), torch.full((kinds,), 1 / kinds)))


def _one_kind(number: int) -> Reading:
    chosen = slice(number, number + 1)

    def reading(loop: MemberLoop) -> Members:
        found = calibrate(lambda scale: loop.held_out_log_densities(scale)[chosen], 1, loop.settings.folds)
        return _read(loop, found, chosen)

    return reading


def _one_fold(loop: MemberLoop) -> Members:
    """A member of each temperature, both calibrated on the one fold that they did not see."""

    def held_out(scale: float) -> torch.Tensor:
        return loop.held_out_log_densities(scale).unflatten(1, (loop.settings.folds, -1))[:, 0]

    return _read(loop, calibrate(held_out, _kinds(loop), folds=1), folds=slice(1))


@dataclass(frozen=True)
class Training:
    """Settings that differ from the default in one thing, and the readings of what is trained.

    Attributes:
        name: Of the cell.
        change: To `Settings`.
        readings: By the name of the method in the table.
        tasks: It means something for.
    """

    name: str
    change: Mapping[str, Any]
    readings: Mapping[str, Reading]
    tasks: tuple[Task, ...] = ("classification", "regression")

    @classmethod
    def alone(cls, name: str, *tasks: Task, **change: Any) -> Training:
        """With the default's own reading."""
        return cls(name, change, {name: _as_it_is}, tasks or ("classification", "regression"))


TRAININGS = (
    Training(
        DEFAULT,
        {},
        {
            DEFAULT: _as_it_is,
            "temperature 0.1 alone": _one_kind(0),
            "temperature 0.01 alone": _one_kind(1),
            "one fold's members": _one_fold,
            "no correction for size": _uncorrected,
            "no calibration": _uncalibrated,
        },
    ),
    Training.alone("temperature 1", temperatures=(1.0,)),
    Training.alone("one prior scale a layer", prior=LearnedNormal("layer")),
    Training.alone("last state", first_snapshot=1.0),
    Training.alone("one Gaussian as noise", "regression", components=1),
)
METHODS = tuple(name for training in TRAININGS for name in training.readings)
NUMBERS, CLASS_METRICS = ("log_likelihood", "rmse", "coverage_90"), ("nll", "accuracy", "ece")


def measured(name: str) -> tuple[str, ...]:
    """The metrics of a data set."""
    return NUMBERS if task_of(name) == "regression" else CLASS_METRICS


def validation_split(table: Table, number: int) -> Split:
    """The training rows of a split, the last of them to be predicted; standardised by the rest."""
    train, _ = table.splits[number]
    first, last = np.split(train, [round((1 - VALIDATION) * len(train))])
    return replace(table, splits=((first, last),)).split(0)


def run(context: Context) -> list[Row]:
    """Every change on every table; a training on a split, with all its readings, is a cell."""
    make = synthetic_table if context.preset.synthetic else lambda name: real_table(name, context.data)
    tables = [make(name) for name in context.datasets]
    with one_thread():
        return [row for table in tables for training in TRAININGS for row in _rows(context, table, training)]


def _rows(context: Context, table: Table, training: Training) -> list[Row]:
    asked = [name for name in training.readings if name in context.methods]
    if not asked:
        return []
    if table.task not in training.tasks:
        context.skipped += [f"{name} on {table.name}: it is not for {table.task}" for name in asked]
        return []
    cells = [
        context.cell(
            table.name, training.name, f"split {number}",
            compute=partial(_measured, table, number, training, context),
        )
        for number in range(context.preset.settings["splits"])
    ]  # fmt: skip
    return [
        Row.over(
            [cell[f"{name}: {metric}"] for cell in cells], dataset=table.name, method=name, variant="", metric=metric
        )
        for name in asked
        for metric in measured(table.name)
    ]


def _measured(table: Table, number: int, training: Training, context: Context) -> dict[str, float]:
    split = validation_split(table, number)
    changed = replace(Settings(), **training.change, steps=context.preset.settings["steps"], seed=context.seed + number)
    x, x_valid = (torch.from_numpy(part).float() for part in (split.x_train, split.x_test))
    y = torch.from_numpy(split.y_train)
    y = y if table.task == "classification" else y.float().unsqueeze(-1)
    outputs = int(table.y.max()) + 1 if table.task == "classification" else 1
    loop = trained_loop(x, y, table.task, changed.for_rows(len(x)), outputs=outputs)
    found = {name: scores(reading(loop).predictive(x_valid), split) for name, reading in training.readings.items()}
    return {f"{name}: {metric}": value for name, values in found.items() for metric, value in values.items()}


def _gains(rows: Sequence[Row], method: str) -> dict[str, float]:
    """What the default is ahead of the changed model by, in log-likelihood per row, on each set."""
    found = {
        (row.dataset, row.method): row.value if row.metric == "log_likelihood" else -row.value
        for row in rows
        if row.metric in ("log_likelihood", "nll")
    }
    return {name: found[name, DEFAULT] - value for (name, changed), value in found.items() if changed == method}


def _contributes(method: str) -> Claim:
    def check(rows: Sequence[Row]) -> Verdict:
        gains = _gains(rows, method)
        if len(gains) < len(measurable):
            return Verdict("not measured", f"needs {', '.join(name for name in measurable if name not in gains)}")
        told = ", ".join(f"{name} {gain:+.3f}" for name, gain in gains.items())
        return Verdict.of(fmean(gains.values()) > 0, f"{fmean(gains.values()):+.3f}: {told}")

    (training,) = (known for known in TRAININGS if method in known.readings)
    measurable = [name for name in SETS if task_of(name) in training.tasks]
    return Claim(f"a higher mean log-likelihood than with: {method}", check)


TABULAR_DEFAULTS = Experiment(
    id="tabular-defaults",
    title="The choices of the default model of a table, one changed at a time, on validation rows",
    presets={
        "smoke": Preset(("yacht", "wine"), METHODS, {"splits": 1, "steps": 20}, synthetic=True),
        "quick": Preset(("boston", "yacht", "diabetes", "wine"), METHODS, {"splits": 1, "steps": None}),
        "paper": Preset(SETS, METHODS, {"splits": 2, "steps": None}),
    },
    methods=METHODS,
    datasets=lambda data: SETS,
    metrics=measured,
    run=run,
    claims=tuple(_contributes(name) for name in METHODS if name != DEFAULT),
    published=Path(__file__).with_name("tabular_defaults.json"),
)
