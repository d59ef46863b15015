"""Figure 1: training curves, the ELBO against iterations.

Every method runs at several step sizes, all replicas of one program, and is shown at the one whose ELBO is highest on
average over the run (each method's step size was tuned there, too).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.nng.choices import conventions
from bayesrule.experiments.nng.claims import Key, needing
from bayesrule.experiments.nng.data import known_sets, splits_of, tables
from bayesrule.experiments.nng.protocol import Setting, Stacked, mark, one_thread, replicas_of
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table
from bayesrule.likelihoods.gamma import GammaPrecision
from bayesrule.train.replicas import Replicas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("bbb", "noisy-adam", "noisy-kfac")
METRICS = ("elbo", "iterations", "iterations_to_bbb")
"""The ELBO per example at the end; iterations until it is reached but for `TOLERANCE`; and until that of BBB is."""
TOLERANCE = 0.02
VARIANT = "λ=1"
BASELINE = "bbb"


@dataclass(frozen=True)
class Curve:
    """One method's: a mean over splits at its step size."""

    lr: float
    iterations: list[int]
    elbo: list[float]

    def reaches(self, level: float) -> float:
        """The first iteration from which on it stays at a level; the last one if it never does."""
        below = [number for number, value in enumerate(self.elbo) if value < level]
        return float(self.iterations[min(below[-1] + 1 if below else 0, len(self.elbo) - 1)])


def elbo(replicas: Replicas, samples: int) -> Float[Tensor, " replicas"]:
    """``E_q[log p(y | x, w, τ)] − (KL(q(w)‖p(w)) + KL(q(τ)‖p(τ)))/N`` of each, over its training rows."""
    stream, program = replicas.stream, replicas.program
    residuals = replicas.predict(stream.x[..., :-1], samples).outputs - stream.y
    squares = residuals.square().mean(0).sum(-1).mean(-1).double()
    targets, (own, prior) = stream.y.shape[-1], (replicas.state.noise, program.noise_prior)
    numbers = (own.shape, own.rate, prior.shape, prior.rate, squares, replicas.kl())
    found = []
    for a, b, a0, b0, square, kl in torch.stack([each.flatten().double().cpu() for each in numbers], 1):
        law = GammaPrecision(a, b)
        expected = 0.5 * (targets * (law.mean_log - math.log(2 * math.pi)) - law.mean * square)
        found.append(expected - (kl + law.kl(GammaPrecision(a0, b0))) / program.n_data)
    return torch.stack(found)


def run(context: Context) -> list[Row]:
    """The tuned curve of every method; all replicas of a method are a cell."""
    rows = []
    for table in tables(context):
        curves = {method: curve(context, table, method) for method in context.methods}
        rival = curves.get(BASELINE)
        for method, found in curves.items():
            values = {"elbo": found.elbo[-1], "iterations": found.reaches(found.elbo[-1] - TOLERANCE)}
            if rival is not None:
                values["iterations_to_bbb"] = found.reaches(rival.elbo[-1] - TOLERANCE)
            count = splits_of(context, table)
            rows += [Row(table.name, method, f"{VARIANT}, lr {found.lr:g}", name, value, None, count)
                     for name, value in values.items()]  # fmt: skip
    return rows


def curve(context: Context, table: Table, method: str) -> Curve:
    """At the best of the step sizes."""
    how = mark(conventions(method))
    cell = context.cell(table.name, method, how, compute=lambda: _measured(context, table, method))
    found: dict[float, dict[int, float]] = {}
    for key, value in cell.items():
        lr, iteration = key.split(" at ")
        found.setdefault(float(lr), {})[int(iteration)] = value
    best = max(found, key=lambda lr: fmean(found[lr].values()))
    return Curve(best, list(found[best]), list(found[best].values()))


def _measured(context: Context, table: Table, method: str) -> dict[str, float]:
    settings, count = context.preset.settings, splits_of(context, table)
    rates: Sequence[float] = settings["lr"]
    data = Stacked.of([table.split(number) for number in range(count)]).repeated(len(rates)).to(context.device)
    points = [
        Setting(method, lr=lr, beta=settings["beta"]).changed(conventions(method)) for lr in rates for _ in range(count)
    ]
    seeds = [context.seed + number for _ in rates for number in range(count)]
    values: dict[str, float] = {}

    def keep(steps: int, replicas: Replicas) -> None:
        if steps % settings["every"] == 0:
            means = elbo(replicas, settings["samples"]).reshape(len(rates), count).mean(1)
            values.update({f"{lr:g} at {steps}": value for lr, value in zip(rates, means.tolist(), strict=True)})

    with one_thread(), torch.no_grad():
        replicas = replicas_of(points, data, table.name, seeds)
        replicas.train(-(-settings["iterations"] // replicas.stream.steps), after_step=keep)
    return values


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """A panel for each data set."""
    from matplotlib.figure import Figure

    found = tables(context)
    figure = Figure(figsize=(5 * len(found), 3.5))
    for number, table in enumerate(found):
        axes = figure.add_subplot(1, len(found), number + 1)
        for method in context.methods:
            each = curve(context, table, method)
            axes.plot(each.iterations, each.elbo, label=f"{method}, lr {each.lr:g}")
        axes.set(title=table.name, xlabel="iterations", ylabel="ELBO per example")
        axes.legend()
    return {"curves": figure}


def faster(method: str, share: float) -> Claim:
    """It reaches the ELBO that BBB ends with in at most a share of BBB's iterations, on every set."""

    def check(rows: Sequence[Row]) -> Verdict:
        plain = [Row(r.dataset, r.method, VARIANT, r.metric, r.value, r.sem, r.n) for r in rows]
        sets = sorted({row.dataset for row in rows})
        pairs, metrics = product(sets, (BASELINE, method)), ("iterations_to_bbb", "elbo")
        keys: list[Key] = [(name, each, VARIANT, metric) for name, each in pairs for metric in metrics]

        def taken(found: Mapping[Key, float], name: str) -> float:
            (own, end), (theirs, level) = (
                [found[name, each, VARIANT, metric] for metric in metrics] for each in (method, BASELINE)
            )
            return own / theirs if end >= level - TOLERANCE else math.inf

        def verdict(found: Mapping[Key, float]) -> Verdict:
            shares = {name: taken(found, name) for name in sets}
            told = ", ".join(f"{name} {value:.2f}" if value < math.inf else f"{name} never"
                             for name, value in shares.items())  # fmt: skip
            return Verdict.of(max(shares.values()) <= share, f"share of BBB's iterations: {told}")

        return needing(plain, keys, verdict)

    return Claim(f"{method} reaches BBB's final ELBO in at most {share:g} of its iterations", check)


def higher(method: str) -> Claim:
    """It ends with a higher ELBO than BBB, on every set."""

    def check(rows: Sequence[Row]) -> Verdict:
        found = {(row.dataset, row.method): row.value for row in rows if row.metric == "elbo"}
        gains = {name: found[name, method] - found[name, BASELINE] for name, each in found
                 if each == method and (name, BASELINE) in found}  # fmt: skip
        if not gains:
            return Verdict("not measured", f"needs {BASELINE} and {method}")
        told = ", ".join(f"{name} {gain:+.3f}" for name, gain in gains.items())
        return Verdict.of(min(gains.values()) > 0, told)

    return Claim(f"{method} ends with a higher ELBO than BBB", check)


RATES = [0.001, 0.003, 0.01, 0.03]

FIGURE1 = Experiment(
    id="nng/figure1",
    title="Noisy natural gradient, Figure 1: training curves",
    presets={
        "smoke": Preset(
            ("yacht",), METHODS,
            {"splits": 2, "iterations": 60, "every": 20, "samples": 2, "lr": [0.003, 0.01], "beta": 0.001},
            synthetic=True,
        ),
        "quick": Preset(
            ("boston", "concrete"), METHODS,
            {"splits": 3, "iterations": 10_000, "every": 250, "samples": 5, "lr": RATES, "beta": 0.001},
        ),
        "paper": Preset(
            ("boston", "concrete"), METHODS,
            {"splits": 10, "iterations": 40_000, "every": 500, "samples": 10, "lr": RATES, "beta": 0.001},
        ),
    },
    methods=METHODS,
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(faster("noisy-adam", 0.99), faster("noisy-kfac", 0.6), higher("noisy-kfac")),
    published=Path(__file__).with_name("published") / "figure1.json",
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip
