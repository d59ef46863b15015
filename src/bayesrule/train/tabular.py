"""A table fitted, in one call: columns to features, the default model, its predictions and measures in plain units."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Int64

from bayesrule.data import ClassTarget, Encoder, EncodingReport, NumberTarget, Split, split
from bayesrule.data.columns import BadTable
from bayesrule.data.splits import FEWEST_ROWS
from bayesrule.data.targets import Recognised, Separated, fit_target, recognise_target, separate_target
from bayesrule.errors import InvalidArgument
from bayesrule.predict import Predictive
from bayesrule.train.fit import CHECKPOINT
from bayesrule.train.member_loop import Progress
from bayesrule.train.members import Members, Settings, Task, train_members
from bayesrule.train.tabular_folder import read_tabular, write_tabular
from bayesrule.train.tabular_measures import classification_columns, measure, regression_columns

ROWS_AT_ONCE = 4096
"""Rows predicted at a time: all draws of their outputs are kept together."""


@dataclass
class TabularModel:
    """What was learned from a table, from its cells to predictions of the target.

    Attributes:
        encoder: Columns to features.
        target: Classes by name, or the standardisation of a number.
        members: The networks.
        task: ``"classification"`` or ``"regression"``.
        target_name: The target's column.
        info: Plain data for JSON about the fit: sizes, notes, seed, seconds, versions, ``metrics``, and what a caller
            adds.
    """

    encoder: Encoder
    target: ClassTarget | NumberTarget
    members: Members
    task: Task
    target_name: str
    info: dict[str, Any] = field(default_factory=dict)

    def predictive(self, frame: pd.DataFrame) -> Predictive:
        """The predictive distribution of every row; a number's is in standardised units, as `NumberTarget.encode`s."""
        return self._predictive(self.encoder.encode(frame).features)

    def predict_frame(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, EncodingReport]:
        """A table of predictions with the index of ``frame``, and what was not as in training.

        For a number ``mean, std, epistemic_std, q05, q50, q95``, in its own units; for classes ``prediction``, a
        ``prob_<class>`` each, ``entropy`` and ``mutual_information``, in nats.
        """
        encoded = self.encoder.encode(frame)
        pieces = [pd.DataFrame(self._columns(predictive)) for predictive in self._pieces(encoded.features)]
        table = pd.concat(pieces, ignore_index=True) if len(pieces) > 1 else pieces[0]
        return table.set_index(frame.index), encoded.report

    def evaluate(self, frame: pd.DataFrame, targets: pd.Series) -> dict[str, float]:
        """Measures on rows whose targets are known.

        ``test_nll, test_accuracy, test_ece``, or ``test_nll, test_rmse, test_coverage_90, test_crps`` in the target's
        own units (to a standardised density belongs ``log std`` more).
        """
        expected = torch.from_numpy(self.target.encode(targets))
        features = self.encoder.encode(frame).features
        parts = zip(self._pieces(features), expected.split(ROWS_AT_ONCE), strict=True)
        return measure(self.target, list(parts))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``model.safetensors``, ``config.json`` and ``metrics.json``, each whole or not at all."""
        return write_tabular(Path(folder), vars(self))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TabularModel:
        """Read what `save` wrote: the same predictions, bit for bit."""
        return cls(**read_tabular(Path(folder)))

    def _columns(self, predictive: Predictive) -> Mapping[str, Any]:
        if isinstance(self.target, ClassTarget):
            return classification_columns(self.target, predictive)
        return regression_columns(self.target, predictive)

    def _pieces(self, features: Float32[np.ndarray, "rows features"]) -> Iterator[Predictive]:
        for start in range(0, len(features), ROWS_AT_ONCE):
            yield self._predictive(features[start : start + ROWS_AT_ONCE])

    def _predictive(self, features: Float32[np.ndarray, "rows features"]) -> Predictive:
        return self.members.predictive(torch.from_numpy(features), seed=self.members.settings.seed)


@dataclass(frozen=True)
class TableFit:
    """How a fit went: what a report shows.

    Attributes:
        task: That was fitted.
        reason: Why it is that task.
        notes: What a user should know of how the table was used.
        train_rows: Positions in the table given; rows without a target are in neither part.
        test_rows: Likewise.
        train_frame: Features of the training rows.
        train_targets: Their targets.
        test_frame: Features of the test rows.
        test_targets: Their targets.
        history: A dict for each time training was measured.
        metrics: On the test rows; empty if there are none.
        seconds: That training took.
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
    seconds: float


def fit_table(
    frame: pd.DataFrame,
    target_name: str,
    *,
    task: Task | None = None,
    settings: Settings | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[TabularModel, TableFit]:
    """Fit the default model to a table, and measure it on rows kept back.

    There is no validation part: members are cross-fitted, each stopped and calibrated on training rows it did not see.
    The encoder and a number's scale are of the training rows alone.

    Args:
        frame: Features and target; rows without a target are left out.
        target_name: The target's column.
        task: By default recognised by the target's values.
        settings: Of the model; with few rows it gets fewer folds.
        test_fraction: Of the rows, kept back; 0 trains on all.
        seed: Of the split and of training, in place of the one in ``settings``.
        out: Folder for a checkpoint of training, which stays there.
        resume: Go on from the checkpoint in ``out``, if there is one.
        on_progress: Told how training goes.
    """
    if not 0 <= test_fraction < 1:
        raise InvalidArgument("test_fraction is at least 0 and below 1", got=test_fraction)
    rows = separate_target(frame, target_name)
    recognised = _recognise(rows, task)
    parts, target = _divide(rows, recognised.task, test_fraction, seed)
    train, train_targets = rows.features.iloc[parts.train], rows.target.iloc[parts.train]
    test, test_targets = rows.features.iloc[parts.test], rows.target.iloc[parts.test]
    encoder = Encoder.fit(train)
    x, y = torch.from_numpy(encoder.encode(train).features), torch.from_numpy(target.encode(train_targets))
    settings = replace(settings or Settings(), seed=seed)
    settings = replace(settings, folds=max(2, min(settings.folds, len(x) // 2)))
    started = time.perf_counter()
    members, history = train_members(
        x, y if isinstance(target, ClassTarget) else y.unsqueeze(-1), recognised.task, settings,
        outputs=len(target.classes) if isinstance(target, ClassTarget) else 1,
        checkpoint=None if out is None else Path(out) / CHECKPOINT, resume=resume, on_progress=on_progress,
    )  # fmt: skip
    seconds = history[-1]["seconds"] if history else time.perf_counter() - started
    model = TabularModel(encoder, target, members, recognised.task, target_name)
    metrics = model.evaluate(test, test_targets) if len(test) else {}
    known = np.flatnonzero(frame.index.isin(rows.features.index)) if frame.index.is_unique else _known(frame, rows)
    fitted = TableFit(
        recognised.task, recognised.reason, tuple(_notes(rows, parts, encoder)),
        known[parts.train], known[parts.test], train, train_targets, test, test_targets, history, metrics, seconds,
    )  # fmt: skip
    model.info.update(_information(fitted, seed))
    return model, fitted
