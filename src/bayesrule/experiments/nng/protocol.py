"""How the regressions are run: which rule a method is, the sizes of a data set, and its splits as one stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.experiments.tabular_data import Split, Table
from bayesrule.optim.noisy_adam import NoisyAdamRule
from bayesrule.optim.noisy_block_tridiagonal import NoisyBlockTridiagonalRule
from bayesrule.optim.noisy_ekfac import NoisyEKFACRule
from bayesrule.optim.noisy_full import NoisyFullRule
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.optim.rule import Rule
from bayesrule.train.replicas import Replicas
from bayesrule.train.replicas_backprop import BayesByBackpropRule

SMALL = 2000
"""Rows below which batches have 10 rows   [App. C.1]."""
LARGE = ("protein", "year")
"""Sets with twice the hidden units   [App. C.1]."""
HIDDEN, HIDDEN_OF_LARGE = (50,), (100,)
VALIDATION = 0.2
"""Share of a split's training rows, the last ones, that settings are chosen on."""


@dataclass(frozen=True)
class Setting:
    """What a run depends on beside its data; the defaults are App. C.1's where it says something.

    Attributes:
        method: Its name.
        kl_weight: λ.
        prior_std: √η.
        lr: α̃, a tenth of it in the second half.
        beta: β̃ of curvatures.
        noise_prior: Of the targets' precision.
        epochs: In all.
        batch_size: Rows of a step; by default by the size of the set.
        hidden: Widths; by default one layer by the set.
        samples: Draws for a prediction.
    """

    method: str
    kl_weight: float = 1.0
    prior_std: float = 1.0
    lr: float = 0.01
    beta: float = 0.001
    noise_prior: tuple[float, float] = (6.0, 6.0)
    epochs: int = 1000
    batch_size: int | None = None
    hidden: tuple[int, ...] | None = None
    samples: int = 100

    def changed(self, changes: Mapping[str, Any]) -> Setting:
        """A copy; tuples may come as the lists that JSON makes of them."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in changes.items()}
        return replace(self, **values)


def rule_of(setting: Setting) -> Rule:
    """The rule of a method."""
    beta = setting.beta
    rules: Mapping[str, Rule] = {
        "bbb": BayesByBackpropRule(),
        "noisy-adam": NoisyAdamRule(betas=(0.9, 1 - beta)),
        "noisy-kfac": NoisyKFACRule(beta=beta),
        "noisy-kfac-exact": NoisyKFACRule(beta=beta, damping="exact"),
        "noisy-ekfac": NoisyEKFACRule(beta=beta),
        "noisy-full": NoisyFullRule(beta=beta),
        "noisy-block-tridiagonal": NoisyBlockTridiagonalRule(beta=beta),
    }
    return rules[setting.method]


T_INV = {"noisy-full": 50, "noisy-block-tridiagonal": 50}
"""Steps between inverses; for the other methods `Replicas`' own."""


@dataclass(frozen=True)
class Stacked:
    """Splits of one size, each standardised by its own training rows, side by side."""

    x_train: Float[Tensor, "replicas train features"]
    y_train: Float[Tensor, "replicas train 1"]
    x_test: Float[Tensor, "replicas test features"]
    y_test: Float[Tensor, "replicas test 1"]
    scale: Float[Tensor, " replicas"]

    @classmethod
    def of(cls, splits: Sequence[Split], dtype: torch.dtype = torch.float32) -> Stacked:
        """Side by side, in single precision: inverses are computed in double precision all the same."""

        def stacked(name: str) -> Tensor:
            return torch.from_numpy(np.stack([getattr(split, name) for split in splits])).to(dtype)

        return cls(
            stacked("x_train"), stacked("y_train").unsqueeze(-1), stacked("x_test"), stacked("y_test").unsqueeze(-1),
            torch.tensor([split.scale for split in splits], dtype=torch.float64),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.scale)

    def repeated(self, times: int) -> Stacked:
        """All splits, so many times over."""
        return Stacked(*(each.repeat(times, *(1,) * (each.ndim - 1)) for each in vars(self).values()))


def validation_split(table: Table, number: int) -> Split:
    """The training rows of a split, of which the last fifth plays the test rows; those stay unseen."""
    train, _ = table.splits[number]
    cut = round((1 - VALIDATION) * len(train))
    return replace(table, splits=((train[:cut], train[cut:]),)).split(0)


def replicas_of(settings: Sequence[Setting], data: Stacked, dataset: str, seeds: Sequence[int]) -> Replicas:
    """Untrained; each split of the stack has a setting, all of one method, β̃, batch and widths."""
    rows, common = data.x_train.shape[1], settings[0]
    return Replicas(
        data.x_train, data.y_train, rule_of(common),
        hidden=common.hidden or (HIDDEN_OF_LARGE if dataset in LARGE else HIDDEN),
        seeds=seeds,
        lr=[each.lr for each in settings],
        kl_weight=[each.kl_weight for each in settings],
        prior_std=[each.prior_std for each in settings],
        noise_prior=([each.noise_prior[0] for each in settings], [each.noise_prior[1] for each in settings]),
        batch_size=common.batch_size or (10 if rows < SMALL else 100), T_inv=T_INV.get(common.method, 20),
    )  # fmt: skip


def train(replicas: Replicas, epochs: int) -> None:
    """A tenth of the step size in the second half   [App. C.1]."""
    half = epochs // 2
    replicas.train(epochs - half)
    replicas.train(half, lr_factor=0.1)


def scores(settings: Sequence[Setting], data: Stacked, dataset: str, seeds: Sequence[int]) -> dict[str, list[float]]:
    """RMSE and log-likelihood of every split, in the target's own units."""
    with one_thread():
        replicas = replicas_of(settings, data, dataset, seeds)
        train(replicas, settings[0].epochs)
        predicted = replicas.predict(data.x_test, settings[0].samples)
    rmse = predicted.rmse(data.y_test).double() * data.scale
    log_likelihood = predicted.log_likelihood(data.y_test).double() - data.scale.log()
    return {"rmse": rmse.tolist(), "log_likelihood": log_likelihood.tolist()}


def as_cell(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """For keeping: keys are a metric and a number."""
    return {f"{name} {number}": value for name, values in found.items() for number, value in enumerate(values)}


def by_split(cell: Mapping[str, float], metric: str) -> list[float]:
    """A metric's values, split by split."""
    return [cell[f"{metric} {number}"] for number in range(sum(key.startswith(f"{metric} ") for key in cell))]


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices this small are fastest on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
