"""Table 2: active learning by predictive variance, and the random control."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.nng.active import HIDDEN, Run, rounds, small_settings
from bayesrule.experiments.nng.data import known_sets, tables
from bayesrule.experiments.nng.protocol import as_cell, by_split, mark
from bayesrule.experiments.nng.regression import PLAIN
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table
from bayesrule.predict import Predictive, predict
from bayesrule.train.acquire import How
from bayesrule.train.active_learning import active_learning

HMC = "hmc"
LEARNERS = ("bbb", "noisy-adam", "noisy-kfac", "noisy-kfac-exact", "noisy-ekfac", HMC)
WAYS: dict[str, How] = {"random": "random", "active": "variance"}
METHODS = tuple(f"{learner}-{way}" for learner in LEARNERS for way in WAYS)
METRICS = ("rmse", "rmse_start")
"""On the test rows, after the last addition and before the first."""
MISSING = "numpyro is not installed"
SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "yacht")


def run(context: Context) -> list[Row]:
    """All trials of a learner, however it chooses and at every λ, are a cell; of HMC, which takes long, each is one."""
    rows = []
    for table in tables(context):
        for learner in dict.fromkeys(method.rsplit("-", 1)[0] for method in context.methods):
            ways = [way for way in WAYS if f"{learner}-{way}" in context.methods]
            if learner == HMC and importlib.util.find_spec("numpyro") is None:
                context.skipped += [f"{learner}-{way} on {table.name}: {MISSING}" for way in ways]
                continue
            measured = _by_hmc if learner == HMC else partial(_by_replicas, learner=learner)
            for (way, variant), found in measured(context, table, ways=ways).items():
                named = {"dataset": table.name, "method": f"{learner}-{way}", "variant": variant}
                rows += [Row.over(found[metric], metric=metric, **named) for metric in METRICS]
    return rows


Found = dict[tuple[str, str], dict[str, list[float]]]
"""By way and variant: the metrics of all trials."""


def _by_replicas(context: Context, table: Table, *, learner: str, ways: Sequence[str]) -> Found:
    settings = context.preset.settings
    variants = small_settings(learner, table.name, settings["setting"])
    runs = {(way, variant): Run(own, WAYS[way]) for way in ways for variant, own in variants.items()}

    def compute() -> dict[str, float]:
        found = rounds(list(runs.values()), table, seed=context.seed, **settings["protocol"])
        parts = zip(runs, found, strict=True)
        return as_cell({f"{way} {variant} {name}": each[name]
                        for (way, variant), each in parts for name in METRICS})  # fmt: skip

    cell = context.cell(table.name, learner, mark(list(runs.values())), compute=compute)
    return {(way, variant): {name: by_split(cell, f"{way} {variant} {name}") for name in METRICS}
            for way, variant in runs}  # fmt: skip


def _by_hmc(context: Context, table: Table, *, ways: Sequence[str]) -> Found:
    return {(way, PLAIN): _hmc_trials(context, table, way) for way in ways}


def _hmc_trials(context: Context, table: Table, way: str) -> dict[str, list[float]]:
    trials = [
        context.cell(table.name, f"{HMC}-{way}", trial, compute=partial(_hmc_trial, context, table, WAYS[way], trial))
        for trial in range(context.preset.settings["hmc_trials"])
    ]
    return {metric: [trial[metric] for trial in trials] for metric in METRICS}


def _hmc_trial(context: Context, table: Table, how: How, trial: int) -> dict[str, float]:
    """The same rows as the trial of this number of the other methods."""
    protocol = {name: value for name, value in context.preset.settings["protocol"].items() if name != "trials"}
    x, y = torch.from_numpy(table.x), torch.from_numpy(table.y).unsqueeze(-1)
    found = active_learning(hmc_learner(context), x, y, how=how, seed=context.seed + trial, **protocol)
    return {"rmse": found.rmse[-1].item(), "rmse_start": found.rmse[0].item()}


def hmc_learner(context: Context) -> Callable[[Tensor, Tensor, int], Callable[[Tensor], Predictive]]:
    """NUTS for the same network and priors."""
    from bayesrule.inference.hmc import hmc

    def learner(x: Tensor, y: Tensor, seed: int) -> Callable[[Tensor], Predictive]:
        net = nn.Sequential(nn.Linear(x.shape[1], *HIDDEN), nn.ReLU(), nn.Linear(*HIDDEN, y.shape[1])).double()
        network = hmc(net, x, y, seed=seed, **context.preset.settings["hmc"]).network
        return lambda at: predict(network, at, samples=context.preset.settings["setting"]["samples"], seed=seed)

    return learner


def _active_wins(rows: Sequence[Row]) -> Verdict:
    found = {(row.dataset, row.method): row.value for row in rows if (row.metric, row.variant) == ("rmse", PLAIN)}
    sets = sorted({name for name, _ in found
                   if {(name, "noisy-kfac-active"), (name, "noisy-kfac-random")} <= set(found)})  # fmt: skip
    if not sets:
        return Verdict("not measured", "needs noisy-kfac-active and noisy-kfac-random")
    ahead = [name for name in sets if found[name, "noisy-kfac-active"] < found[name, "noisy-kfac-random"]]
    told = ", ".join(f"{name} {found[name, 'noisy-kfac-active']:.3g} / {found[name, 'noisy-kfac-random']:.3g}"
                     for name in sets)  # fmt: skip
    return Verdict.of(2 * len(ahead) > len(sets), f"{len(ahead)} of {len(sets)}: {told}")


TABLE2 = Experiment(
    id="nng/table2",
    title="Noisy natural gradient, Table 2: active learning",
    presets={
        "smoke": Preset(
            ("yacht",), tuple(m for m in METHODS if not m.startswith("hmc")),
            {"protocol": {"trials": 2, "labelled": 20, "test": 30, "additions": 1},
             "setting": {"epochs": 4, "samples": 5, "beta": 0.01}, "hmc": {}, "hmc_trials": 1},
            synthetic=True,
        ),
        "quick": Preset(
            ("boston", "yacht"), ("noisy-kfac-random", "noisy-kfac-active"),
            {"protocol": {"trials": 5, "labelled": 20, "test": 100, "additions": 9},
             "setting": {"epochs": 1000, "samples": 100, "beta": 0.01}, "hmc": {}, "hmc_trials": 2},
        ),
        "paper": Preset(
            SETS, METHODS,
            {"protocol": {"trials": 20, "labelled": 20, "test": 100, "additions": 9},
             "setting": {"epochs": 2000, "samples": 500, "beta": 0.01},
             "hmc": {"chains": 2, "warmup": 500, "draws": 500}, "hmc_trials": 5},
        ),
    },
    methods=METHODS,
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(Claim(f"noisy-kfac, {PLAIN}: choosing by variance beats random choice on most sets", _active_wins),),
    published=Path(__file__).with_name("published") / "table2.json",
    packages=("numpyro", "jax"),
)  # fmt: skip
