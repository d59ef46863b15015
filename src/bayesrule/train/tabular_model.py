"""A model of a table: from its cells to predictions of the target, and to measures in the target's own units."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32

from bayesrule.data import ClassTarget, Encoder, EncodingReport, NumberTarget
from bayesrule.predict import Predictive
from bayesrule.train.members import Members, Task
from bayesrule.train.tabular_folder import read_tabular, write_tabular
from bayesrule.train.tabular_measures import Piece, measures, prediction_columns

ROWS_AT_ONCE = 4096
"""Rows predicted at a time: the outputs of all draws are kept together."""


@dataclass
class TabularModel:
    """What was learned from a table.

    Attributes:
        encoder: Columns to features.
        target: Classes by name, or the standardisation of a number.
        members: The networks.
        task: ``"classification"`` or ``"regression"``.
        target_name: The target's column.
        info: Plain data for JSON about the fit: its sizes, notes, seed, versions and ``metrics``, and what a
            caller adds.
    """

    encoder: Encoder
    target: ClassTarget | NumberTarget
    members: Members
    task: Task
    target_name: str
    info: dict[str, Any] = field(default_factory=dict)

    def predictive(self, frame: pd.DataFrame) -> Predictive:
        """The predictive distribution of every row; a number's is standardised, as by `NumberTarget.encode`."""
        return self._at(self.encoder.encode(frame).features)

    def predict_frame(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, EncodingReport]:
        """A table of predictions with the index of ``frame``, and what was not as in training.

        For a number ``mean, std, epistemic_std, q05, q50, q95``, in its own units; for classes ``prediction``, a
        ``prob_<class>`` each, ``entropy`` and ``mutual_information``, in nats.
        """
        encoded = self.encoder.encode(frame)
        tables = [pd.DataFrame(prediction_columns(self.target, piece)) for piece in self._pieces(encoded.features)]
        return pd.concat(tables, ignore_index=True).set_index(frame.index), encoded.report

    def evaluate(self, frame: pd.DataFrame, targets: pd.Series) -> dict[str, float]:
        """Measures on rows whose targets are known.

        ``test_nll, test_accuracy, test_ece``; or, in the target's own units, ``test_nll, test_rmse, test_coverage_90,
        test_crps`` (the negative logarithm of a standardised density is less by ``log std``).
        """
        known = torch.from_numpy(self.target.encode(targets)).split(ROWS_AT_ONCE)
        pieces = zip(self._pieces(self.encoder.encode(frame).features), known, strict=True)
        return measures(self.target, [Piece.of(self.target, *piece) for piece in pieces])

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``model.safetensors``, ``config.json`` and ``metrics.json``, each whole or not at all."""
        write_tabular(Path(folder), **vars(self))
        return Path(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> TabularModel:
        """Read what `save` wrote: the same predictions, bit for bit."""
        return cls(**read_tabular(Path(folder)))

    def _pieces(self, features: Float32[np.ndarray, "rows features"]) -> Iterator[Predictive]:
        starts = range(0, len(features), ROWS_AT_ONCE)
        return (self._at(features[start : start + ROWS_AT_ONCE]) for start in starts)

    def _at(self, features: Float32[np.ndarray, "rows features"]) -> Predictive:
        return self.members.predictive(torch.from_numpy(features), seed=self.members.settings.seed)
