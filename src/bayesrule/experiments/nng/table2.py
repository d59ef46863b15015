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
from bayesrule.experiments.nng.active import rounds
from bayesrule.experiments.nng.data import known_sets, tables
from bayesrule.experiments.nng.protocol import Setting, as_cell, by_split
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table
from bayesrule.predict import Predictive, predict
from bayesrule.train.acquire import How
from bayesrule.train.active_learning import active_learning

LEARNERS = ("bbb", "noisy-adam", "noisy-kfac", "noisy-kfac-exact", "hmc")
WAYS: dict[str, How] = {"random": "random", "active": "variance"}
METHODS = tuple(f"{learner}-{way}" for learner in LEARNERS for way in WAYS)
METRICS = ("rmse", "rmse_start")
"""On the test rows, after the last addition and before the first."""
HIDDEN = (10,)
MISSING = "numpyro is not installed"
SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "yacht")


def run(context: Context) -> list[Row]:
    """All trials of a method are a cell."""
    rows = []
    for table in tables(context):
        for method in context.methods:
            learner, way = method.rsplit("-", 1)
            if learner == "hmc" and importlib.util.find_spec("numpyro") is None:
                context.skipped.append(f"{method} on {table.name}: {MISSING}")
                continue
            cell = context.cell(table.name, method, compute=partial(_measured, context, table, learner, WAYS[way]))
            rows += [Row.over(by_split(cell, metric), dataset=table.name, method=method, variant="", metric=metric)
                     for metric in METRICS]  # fmt: skip
    return rows


def _measured(context: Context, table: Table, learner: str, how: How) -> dict[str, float]:
    return as_cell(_by_hmc(context, table, how) if learner == "hmc" else _by_replicas(context, table, learner, how))


def _by_replicas(context: Context, table: Table, learner: str, how: How) -> dict[str, list[float]]:
    settings = context.preset.settings
    setting = Setting(learner, hidden=HIDDEN, batch_size=10).changed(settings["setting"])
    return rounds(setting, table, how, seed=context.seed, **settings["protocol"])


def _by_hmc(context: Context, table: Table, how: How) -> dict[str, list[float]]:
    protocol = dict(context.preset.settings["protocol"])
    trials = protocol.pop("trials")
    x, y = torch.from_numpy(table.x), torch.from_numpy(table.y).unsqueeze(-1)
    learner = hmc_learner(context)
    found = [active_learning(learner, x, y, how=how, seed=context.seed + trial, **protocol) for trial in range(trials)]
    return {"rmse": [each.rmse[-1].item() for each in found], "rmse_start": [each.rmse[0].item() for each in found]}


def hmc_learner(context: Context) -> Callable[[Tensor, Tensor, int], Callable[[Tensor], Predictive]]:
    """NUTS for the same network and priors."""
    from bayesrule.inference.hmc import hmc

    def learner(x: Tensor, y: Tensor, seed: int) -> Callable[[Tensor], Predictive]:
        net = nn.Sequential(nn.Linear(x.shape[1], *HIDDEN), nn.ReLU(), nn.Linear(*HIDDEN, y.shape[1])).double()
        network = hmc(net, x, y, seed=seed, **context.preset.settings["hmc"]).network
        return lambda at: predict(network, at, samples=context.preset.settings["setting"]["samples"], seed=seed)

    return learner


def _active_wins(rows: Sequence[Row]) -> Verdict:
    found = {(row.dataset, row.method): row.value for row in rows if row.metric == "rmse"}
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
             "setting": {"epochs": 4, "samples": 5, "beta": 0.01}, "hmc": {}},
            synthetic=True,
        ),
        "quick": Preset(
            ("boston", "yacht"), ("noisy-kfac-random", "noisy-kfac-active"),
            {"protocol": {"trials": 5, "labelled": 20, "test": 100, "additions": 9},
             "setting": {"epochs": 1000, "samples": 100, "beta": 0.01}, "hmc": {}},
        ),
        "paper": Preset(
            SETS, METHODS,
            {"protocol": {"trials": 20, "labelled": 20, "test": 100, "additions": 9},
             "setting": {"epochs": 2000, "samples": 500, "beta": 0.01},
             "hmc": {"chains": 2, "warmup": 500, "draws": 500}},
        ),
    },
    methods=METHODS,
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(Claim("noisy-kfac: choosing by variance beats random choice on most sets", _active_wins),),
    published=Path(__file__).with_name("published") / "table2.json",
    packages=("numpyro", "jax"),
)  # fmt: skip
