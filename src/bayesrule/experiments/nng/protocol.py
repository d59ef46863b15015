"""How the regressions are run: which rule a method is, the sizes of a data set, and its splits as one stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
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
from bayesrule.train.replicas_network import Start

CPU = torch.device("cpu")
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
        warm_up: Whether averages of curvature start evenly and without draws, not at the prior; by default the rule's.
        max_kl: The guard on the step; None for none.
        quiet_steps: Steps at the start without draws.
        start: Of the weights.
        noise_lr: Step size of q(τ).
        T_inv: Steps between inverses; by default by the method.
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
    warm_up: bool | None = None
    max_kl: float | None = 0.01
    quiet_steps: int = 0
    start: Start = "linear"
    noise_lr: float = 0.01
    T_inv: int | None = None

    @property
    def program(self) -> Setting:
        """What replicas of one program have in common."""
        return replace(self, **{name: getattr(Setting, name) for name in OWN})

    def changed(self, changes: Mapping[str, Any]) -> Setting:
        """A copy; tuples may come as the lists that JSON makes of them."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in changes.items()}
        return replace(self, **values)


OWN = ("kl_weight", "prior_std", "lr", "noise_prior")
"""Fields of a setting that every replica of a program has for itself."""


def rule_of(setting: Setting) -> Rule:
    """The rule of a method."""
    common: dict[str, Any] = {"max_kl": setting.max_kl}
    if setting.warm_up is not None:
        common["warm_up"] = setting.warm_up
    natural = {"beta": setting.beta, **common}
    rules: Mapping[str, Callable[[], Rule]] = {
        "bbb": BayesByBackpropRule,
        "noisy-adam": lambda: NoisyAdamRule(betas=(0.9, 1 - setting.beta), **common),
        "noisy-kfac": lambda: NoisyKFACRule(**natural),
        "noisy-kfac-exact": lambda: NoisyKFACRule(damping="exact", **natural),
        "noisy-ekfac": lambda: NoisyEKFACRule(**natural),
        "noisy-full": lambda: NoisyFullRule(**natural),
        "noisy-block-tridiagonal": lambda: NoisyBlockTridiagonalRule(**natural),
    }
    return rules[setting.method]()


T_INV = {"noisy-full": 50, "noisy-block-tridiagonal": 50}
"""Steps between inverses; for the other methods 20, as by default."""


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
        return self.taken(list(range(len(self))) * times)

    def taken(self, numbers: Sequence[int]) -> Stacked:
        """Splits by number."""
        return Stacked(*(each[list(numbers)] for each in vars(self).values()))

    def to(self, device: torch.device) -> Stacked:
        """On a device."""
        return Stacked(*(each.to(device) for each in vars(self).values()))


def validation_split(table: Table, number: int) -> Split:
    """The training rows of a split, of which the last fifth plays the test rows; those stay unseen."""
    train, _ = table.splits[number]
    cut = round((1 - VALIDATION) * len(train))
    return replace(table, splits=((train[:cut], train[cut:]),)).split(0)


def replicas_of(settings: Sequence[Setting], data: Stacked, dataset: str, seeds: Sequence[int]) -> Replicas:
    """Untrained, where the data are; each split of the stack has a setting, all of one program."""
    rows, common = data.x_train.shape[1], settings[0]
    return Replicas(
        data.x_train, data.y_train, rule_of(common),
        hidden=common.hidden or (HIDDEN_OF_LARGE if dataset in LARGE else HIDDEN),
        seeds=seeds,
        lr=[each.lr for each in settings],
        kl_weight=[each.kl_weight for each in settings],
        prior_std=[each.prior_std for each in settings],
        noise_prior=([each.noise_prior[0] for each in settings], [each.noise_prior[1] for each in settings]),
        batch_size=common.batch_size or (10 if rows < SMALL else 100), quiet_steps=common.quiet_steps,
        T_inv=common.T_inv or T_INV.get(common.method, 20), noise_lr=common.noise_lr, start=common.start,
    )  # fmt: skip


def train(replicas: Replicas, epochs: int) -> None:
    """A tenth of the step size in the second half   [App. C.1]."""
    half = epochs // 2
    replicas.train(epochs - half)
    replicas.train(half, lr_factor=0.1)


def by_program(settings: Sequence[Setting]) -> list[list[int]]:
    """Numbers of the settings whose replicas can be trained as one program."""
    groups: dict[Setting, list[int]] = {}
    for number, setting in enumerate(settings):
        groups.setdefault(setting.program, []).append(number)
    return list(groups.values())


def scores(
    settings: Sequence[Setting], data: Stacked, dataset: str, seeds: Sequence[int], device: torch.device = CPU
) -> dict[str, list[float]]:
    """RMSE and log-likelihood of every split, in the target's own units; one program for all that can share one.

    Args:
        settings: Of each split.
        data: The splits.
        dataset: Their name.
        seeds: Of each split.
        device: To train on.
    """
    found: dict[int, dict[str, float]] = {}
    for numbers in by_program(settings):
        own = [settings[number] for number in numbers]
        values = _scores(own, data.taken(numbers).to(device), dataset, [seeds[number] for number in numbers])
        for place, number in enumerate(numbers):
            found[number] = {name: value[place] for name, value in values.items()}
    return {name: [found[number][name] for number in range(len(settings))] for name in found[0]}


def _scores(settings: Sequence[Setting], data: Stacked, dataset: str, seeds: Sequence[int]) -> dict[str, list[float]]:
    with one_thread():
        replicas = replicas_of(settings, data, dataset, seeds)
        train(replicas, settings[0].epochs)
        predicted = replicas.predict(data.x_test, settings[0].samples)
    rmse = predicted.rmse(data.y_test).double() * data.scale
    log_likelihood = predicted.log_likelihood(data.y_test).double() - data.scale.log()
    return {"rmse": rmse.tolist(), "log_likelihood": log_likelihood.tolist()}


def mark(*parts: object) -> str:
    """A short name for what a cell depends on beside its name."""
    return sha256(repr(parts).encode()).hexdigest()[:8]


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
