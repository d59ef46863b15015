"""Active learning of many trials at once: every round trains one replica for each trial   [App. C.2]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayesrule.experiments.nng.protocol import Setting, Stacked, one_thread, replicas_of, train
from bayesrule.experiments.tabular_data import Split, Table
from bayesrule.random import keyed_generator
from bayesrule.train.acquire import How, acquire
from bayesrule.train.replicas import ReplicaPredictive


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


def fitted(setting: Setting, data: Stacked, name: str, seeds: list[int]) -> ReplicaPredictive:
    """A network for each trial, trained from scratch, at the rows it was not trained on."""
    with one_thread():
        replicas = replicas_of([setting] * len(data), data, name, seeds)
        train(replicas, setting.epochs)
        return replicas.predict(data.x_test, setting.samples)


def rounds(
    setting: Setting, table: Table, how: How, *, trials: int, labelled: int, test: int, additions: int, seed: int
) -> dict[str, list[float]]:
    """RMSE on the test rows of every trial, at the start and after the last addition."""
    running = [Trial.shuffled(len(table.x), labelled, test, seed + number) for number in range(trials)]
    errors: list[Tensor] = []
    for number in range(additions + 1):
        data = Stacked.of([trial.split(table) for trial in running])
        seeds = [seed + trials * number + trial for trial in range(trials)]
        predicted = fitted(setting, data, table.name, seeds)
        tested = ReplicaPredictive(predicted.outputs[:, :, :test], predicted.noise)
        errors.append(tested.rmse(data.y_test[:, :test]).double() * data.scale)
        if number < additions:
            pooled = ReplicaPredictive(predicted.outputs[:, :, test:], predicted.noise)
            for index, trial in enumerate(running):
                found = acquire(pooled.of(index), how=how, seed=seeds[index])
                trial.known.append(trial.pool.pop(int(found.indices)))
    return {"rmse": errors[-1].tolist(), "rmse_start": errors[0].tolist()}
