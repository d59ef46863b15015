"""Active learning of many trials at once: every round trains one replica for each trial of each run   [App. C.2]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesrule.experiments.nng.choices import choice
from bayesrule.experiments.nng.protocol import Setting, Stacked, one_thread, replicas_of, train
from bayesrule.experiments.nng.regression import PLAIN, VALIDATED
from bayesrule.experiments.tabular_data import Split, Table
from bayesrule.random import keyed_generator
from bayesrule.train.acquire import How, acquire
from bayesrule.train.replicas import ReplicaPredictive

HIDDEN = (10,)


@dataclass
class Trial:
    """Rows of a table: those with labels so far, those to test on, and the pool."""

    known: list[int]
    test: list[int]
    pool: list[int]

    @classmethod
    def shuffled(cls, rows: int, labelled: int, test: int, seed: int) -> Trial:
        """As `bayesrule.train.active_learning` shuffles."""
        order = torch.randperm(rows, generator=keyed_generator(torch.device("cpu"), seed, "active learning")).tolist()
        return cls(order[:labelled], order[labelled : labelled + test], order[labelled + test :])

    def split(self, table: Table) -> Split:
        """Standardised by the rows with labels; the test rows come first, then the pool."""
        rows = np.array(self.known), np.array(self.test + self.pool)
        return Table(table.name, table.task, table.x, table.y, (rows,)).split(0)


def small_settings(method: str, dataset: str, changes: Mapping[str, Any]) -> dict[str, Setting]:
    """Of networks for a few labels, by variant: at λ = 1, and at the λ that validation rows chose on this set."""
    plain = Setting(method, hidden=HIDDEN, batch_size=10).changed(changes)
    return {PLAIN: plain, VALIDATED: plain.changed({"kl_weight": choice(dataset, method)["kl_weight"]})}


def fitted(settings: Sequence[Setting], data: Stacked, name: str, seeds: Sequence[int]) -> ReplicaPredictive:
    """Networks with settings of one program, trained from scratch, at the rows they were not trained on."""
    with one_thread():
        replicas = replicas_of(settings, data, name, seeds)
        train(replicas, settings[0].epochs)
        return replicas.predict(data.x_test, settings[0].samples)


@dataclass(frozen=True)
class Run:
    """A way to learn, and one to choose what is labelled next."""

    setting: Setting
    how: How


def rounds(
    runs: Sequence[Run], table: Table, *, trials: int, labelled: int, test: int, additions: int, seed: int
) -> list[dict[str, list[float]]]:
    """Of each run: RMSE on the test rows of every trial, at the start and after the last addition."""
    each = [(run, number) for run in runs for number in range(trials)]
    running = [Trial.shuffled(len(table.x), labelled, test, seed + number) for _, number in each]
    errors: list[Tensor] = []
    for number in range(additions + 1):
        data = Stacked.of([trial.split(table) for trial in running])
        seeds = [seed + trials * number + trial for _, trial in each]
        predicted = fitted([run.setting for run, _ in each], data, table.name, seeds)
        tested = ReplicaPredictive(predicted.outputs[:, :, :test], predicted.noise)
        errors.append(tested.rmse(data.y_test[:, :test]).double() * data.scale)
        if number < additions:
            pooled = ReplicaPredictive(predicted.outputs[:, :, test:], predicted.noise)
            for index, trial in enumerate(running):
                found = acquire(pooled.of(index), how=each[index][0].how, seed=seeds[index])
                trial.known.append(trial.pool.pop(int(found.indices)))
    pairs = zip(errors[-1].split(trials), errors[0].split(trials), strict=True)
    return [{"rmse": last.tolist(), "rmse_start": first.tolist()} for last, first in pairs]
