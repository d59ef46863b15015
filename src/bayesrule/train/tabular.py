"""A table fitted in one call: the task recognised, rows kept back, the default model trained and measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64

from bayesrule.data import ClassTarget, Encoder, NumberTarget, Split, fit_target, recognise_target, split
from bayesrule.data.columns import BadTable
from bayesrule.data.splits import FEWEST_ROWS
from bayesrule.data.targets import Recognised, Separated, separate_target
from bayesrule.errors import InvalidArgument
from bayesrule.train.fit import CHECKPOINT
from bayesrule.train.member_loop import Progress
from bayesrule.train.members import Settings, Task, train_members
from bayesrule.train.tabular_model import TabularModel

__all__ = ["TableFit", "TabularModel", "fit_table"]


@dataclass(frozen=True)
class TableFit:
    """How a fit went: what a report shows.

    Attributes:
        task: That was fitted.
        reason: Why it is that task.
        notes: What a user should know of how the table was used.
        train_rows: Positions in the table given, as also the indices of the frames below; rows without a target are
            in neither part.
        test_rows: Likewise.
        train_frame: Features of the training rows.
        train_targets: Their targets.
        test_frame: Features of the test rows.
        test_targets: Their targets.
        history: A dict for each time training was measured.
        metrics: On the test rows; empty if there are none.
    """

    task: Task
    reason: str
    notes: tuple[str, ...]
    train_rows: Int64[np.ndarray, " train"]
    test_rows: Int64[np.ndarray, " test"]
    train_frame: pd.DataFrame
    train_targets: pd.Series
    test_frame: pd.DataFrame
    test_targets: pd.Series
    history: list[dict[str, Any]]
    metrics: dict[str, float]

    @property
    def seconds(self) -> float:
        """That training took, interruptions left out."""
        return self.history[-1]["seconds"]


def fit_table(
    frame: pd.DataFrame,
    target_name: str,
    *,
    task: str | None = None,
    settings: Settings | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[TabularModel, TableFit]:
    """Fit the default model to a table, and measure it on rows kept back.

    There is no validation part: members are cross-fitted, each stopped and calibrated on training rows it did not see.
    The encoder and a number's scale come from the training rows alone; the names of the classes from all.

    Args:
        frame: Features and target; rows without a target are left out.
        target_name: The target's column.
        task: ``"classification"`` or ``"regression"``; by default recognised by the target's values.
        settings: Of the model; with few rows it gets fewer folds.
        test_fraction: Of the rows, kept back; 0 trains on all.
        seed: Of the split and of training, in place of the one in ``settings``.
        out: Folder for a checkpoint of training, which stays there.
        resume: Go on from the checkpoint in ``out``, if there is one.
        on_progress: Told how training goes.
    """
    rows = separate_target(frame.reset_index(drop=True), target_name)
    recognised = _recognise(rows, task)
    parts, target = _divide(rows, recognised.task, test_fraction, seed)
    train, train_targets = rows.features.iloc[parts.train], rows.target.iloc[parts.train]
    test, test_targets = rows.features.iloc[parts.test], rows.target.iloc[parts.test]
    encoder = Encoder.fit(train)
    y = torch.from_numpy(target.encode(train_targets))
    classes = len(target.classes) if isinstance(target, ClassTarget) else None
    members, history = train_members(
        torch.from_numpy(encoder.encode(train).features), y.unsqueeze(-1) if classes is None else y, recognised.task,
        replace(settings or Settings(), seed=seed).for_rows(len(train)), outputs=classes or 1,
        checkpoint=None if out is None else Path(out) / CHECKPOINT, resume=resume, on_progress=on_progress,
    )  # fmt: skip
    model = TabularModel(encoder, target, members, recognised.task, target_name)
    fitted = TableFit(
        recognised.task, recognised.reason, tuple(_notes(rows, parts, encoder)),
        train.index.to_numpy(), test.index.to_numpy(), train, train_targets, test, test_targets,
        history, model.evaluate(test, test_targets) if len(test) else {},
    )  # fmt: skip
    model.info.update(_information(model, fitted, seed))
    return model, fitted


def _recognise(rows: Separated, task: str | None) -> Recognised:
    if len(rows.target) < FEWEST_ROWS:
        raise BadTable(
            f"A model needs at least {FEWEST_ROWS} rows with a target", got=len(rows.target), remedy="Give more data."
        )
    if task is None:
        return recognise_target(rows.target)
    for known in get_args(Task):
        if task == known:
            return Recognised(known, "it was asked for")
    raise InvalidArgument("There are two tasks", got=task, remedy=f"Use {' or '.join(get_args(Task))}.")


def _divide(rows: Separated, task: Task, test_fraction: float, seed: int) -> tuple[Split, ClassTarget | NumberTarget]:
    """The rows to train and to test on, and the target: its classes are those of all rows, its scale is of training."""
    if not 0 <= test_fraction < 1:
        raise InvalidArgument("test_fraction is at least 0 and below 1", got=test_fraction)
    target = fit_target(rows.target, task)
    parts = split(len(rows.target), target.encode(rows.target), task, seed, (1 - test_fraction, 0.0, test_fraction))
    return parts, target if isinstance(target, ClassTarget) else fit_target(rows.target.iloc[parts.train], task)


def _notes(rows: Separated, parts: Split, encoder: Encoder) -> list[str]:
    said = encoder.notes()
    if rows.without_target:
        said.append(f"{rows.without_target} rows have no target and are left out.")
    if parts.singletons:
        said.append(f"{parts.singletons} classes have a single row, which is trained on and never tested.")
    return said


def _information(model: TabularModel, fitted: TableFit, seed: int) -> dict[str, Any]:
    return {
        "reason": fitted.reason,
        "notes": list(fitted.notes),
        "train_rows": len(fitted.train_rows),
        "test_rows": len(fitted.test_rows),
        "features": len(model.encoder.feature_names),
        "parameters": sum(parameter.numel() for parameter in model.members.parameters()),
        "seed": seed,
        "metrics": fitted.metrics,
        "versions": {
            "bayesrule": version("bayesrule"), "torch": torch.__version__, "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }  # fmt: skip
