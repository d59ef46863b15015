"""CIFAR-10 at equal time: noisy K-FAC beside stochastic gradient descent, Adam and noisy Adam.

The paper counts iterations; a user pays seconds. Every method trains the same network for the same number of seconds on
the same device, alone, and its step size falls with the share of them that is spent. The step size itself is chosen on
validation data, with the weight decay or that of the KL: for every method among as many candidates of as many seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesrule.data import LabelledSet
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.labelled_data import ready_set
from bayesrule.experiments.nng.timed_training import OPTIMIZERS, Trainer, endless, scores, train_for, warmed
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASET = "cifar-10"
METHODS = tuple(OPTIMIZERS)
METRICS = ("accuracy", "nll", "ece", "epochs")
KFAC = "noisy-kfac"
Candidate = dict[str, float]
NAMES = {"lr": "lr", "weight_decay": "weight decay", "kl_weight": "λ"}
GRIDS: dict[str, dict[str, list[float]]] = {
    "sgd": {"weight_decay": [2e-3, 5e-3], "lr": [0.03, 0.1, 0.3]},
    "adam": {"weight_decay": [0.05, 0.01], "lr": [3e-4, 1e-3, 3e-3]},
    "noisy-adam": {"kl_weight": [0.01, 0.1], "lr": [0.03, 0.1, 0.3]},
    "noisy-kfac": {"kl_weight": [0.01, 1e-3], "lr": [1e-3, 3e-3, 1e-2]},
}
POSTERIOR = {"prior_std": 0.1, "plain_lr": 3e-3}
OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "nesterov": True},
    "adam": {},
    "noisy-adam": {**POSTERIOR, "T_stats": 10, "betas": (0.9, 0.99), "warm_up": True},
    "noisy-kfac": {
        **POSTERIOR, "T_stats": 20, "T_inv": 100, "beta": 0.05, "momentum": 0.9, "extra_damping": 1e-3,
    },
}  # fmt: skip
"""Noisy Adam starts from an even average of squares: while one grows from zero, weights are drawn from almost the
prior, and little is learned. Noisy K-FAC does so by default."""


def preset(
    budget: float, search: float, *, width: int, batch: int, samples: int, points: int, synthetic: int = 0,
    candidates: int = 6,
) -> Preset:  # fmt: skip
    """A size of the experiment.

    Args:
        budget: Seconds of a reported run.
        search: Seconds of a candidate.
        width: Channels of the first block.
        batch: Examples in a batch.
        samples: Draws of the weights a prediction averages over.
        points: Of the curves.
        synthetic: If not 0: so many made-up training examples in place of the set.
        candidates: Points of its grid that each method may try.
    """
    grids = {method: [dict(zip(grid, point, strict=True)) for point in product(*grid.values())]
             for method, grid in GRIDS.items()}  # fmt: skip
    settings = {
        "budget": budget, "search": search, "width": width, "batch": batch, "samples": samples, "points": points,
        "validation": 5000, "synthetic": synthetic, "options": OPTIONS,
        "candidates": {method: points[:candidates] for method, points in grids.items()},
    }  # fmt: skip
    return Preset((DATASET,), METHODS, settings, synthetic=bool(synthetic))


def run(context: Context) -> list[Row]:
    """Candidates and the reported run of each method are cells, one after another."""
    rows = []
    for method in context.methods:
        candidate = chosen(context, method)
        found = measured(context, method, candidate)
        variant = f"{words(candidate)}, {context.preset.settings['budget']:g} s"
        rows += [Row(DATASET, method, variant, metric, found[metric], None, 1) for metric in METRICS]
    return rows


def words(candidate: Candidate) -> str:
    """A candidate in a table."""
    return ", ".join(f"{NAMES[name]} {value:g}" for name, value in reversed(candidate.items()))


def chosen(context: Context, method: str) -> Candidate:
    """The candidate with the least negative log-likelihood on validation data."""

    def nll(candidate: Candidate) -> float:
        compute = partial(_tried, context, method, candidate)
        return context.cell(DATASET, method, words(candidate), compute=compute)["nll"]

    candidates: Sequence[Candidate] = context.preset.settings["candidates"][method]
    return min(candidates, key=nll)


def _tried(context: Context, method: str, candidate: Candidate) -> dict[str, float]:
    settings, data = context.preset.settings, _data(context)
    warmed(method, settings, data)
    trainer = Trainer.of(method, candidate, settings, data, context.seed)
    done = train_for(settings["search"], trainer, endless(data, settings["batch"]), context.device)
    return scores(done.trainer, data.valid_x, data.valid_y, settings["samples"])


def measured(context: Context, method: str, candidate: Candidate) -> dict[str, float]:
    """The reported run: scores at its end, and ``<metric> at <seconds>`` on the way."""
    compute = partial(_reported, context, method, candidate)
    return context.cell(DATASET, method, "reported", words(candidate), compute=compute)


def _reported(context: Context, method: str, candidate: Candidate) -> dict[str, float]:
    settings, data = context.preset.settings, _data(context)

    def look(trainer: Trainer) -> dict[str, float]:
        return scores(trainer, data.test_x, data.test_y, settings["samples"])

    warmed(method, settings, data)
    trainer = Trainer.of(method, candidate, settings, data, context.seed)
    shares = [(number + 1) / settings["points"] for number in range(settings["points"])]
    batches = endless(data, settings["batch"])
    done = train_for(settings["budget"], trainer, batches, context.device, look_at=shares, look=look)
    *_, last = done.curve.values()
    found = {**last, "epochs": done.steps * settings["batch"] / len(data.train_y), "seconds": done.seconds}
    for seconds, values in done.curve.items():
        found |= {f"{metric} at {seconds:.3f}": value for metric, value in values.items()}
    return found


def _data(context: Context) -> LabelledSet:
    settings = context.preset.settings
    return ready_set(
        DATASET, context.data, context.device, validation=settings["validation"], synthetic=settings["synthetic"]
    )  # fmt: skip


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """Accuracy and negative log-likelihood on the test set against seconds of training."""
    from matplotlib.figure import Figure

    candidates = {method: chosen(context, method) for method in context.methods}
    runs = {method: measured(context, method, candidate) for method, candidate in candidates.items()}
    figure = Figure(figsize=(10, 3.5))
    for number, metric in enumerate(("accuracy", "nll")):
        axes = figure.add_subplot(1, 2, number + 1)
        for method, candidate in candidates.items():
            points = _curve(runs[method], metric)
            axes.plot(list(points), list(points.values()), marker=".", label=f"{method}, {words(candidate)}")
        axes.set(xlabel="seconds of training", ylabel={"accuracy": "accuracy (%)", "nll": "NLL (nats)"}[metric])
        axes.legend()
    return {"curves": figure}


def _curve(found: Mapping[str, float], metric: str) -> dict[float, float]:
    prefix = f"{metric} at "
    return {float(name.removeprefix(prefix)): value for name, value in found.items() if name.startswith(prefix)}


def better(metric: str, rivals: Sequence[str], *, larger: bool) -> Claim:
    """Noisy K-FAC is ahead of all rivals in a metric."""

    def check(rows: Sequence[Row]) -> Verdict:
        found = {row.method: row.value for row in rows if row.metric == metric}
        missing = [name for name in (KFAC, *rivals) if name not in found]
        if missing:
            return Verdict("not measured", f"needs {', '.join(missing)}")
        told = ", ".join(f"{name} {found[name]:.4g}" for name in (KFAC, *rivals))
        ahead = [found[KFAC] > found[name] if larger else found[KFAC] < found[name] for name in rivals]
        return Verdict.of(all(ahead), told)

    word = "higher" if larger else "lower"
    return Claim(f"{KFAC} has a {word} {metric} than {' and '.join(rivals)} after the same time", check)


CIFAR10 = Experiment(
    id="nng/cifar10",
    title="Noisy natural gradient on CIFAR-10 at equal time",
    presets={
        "smoke": preset(0.4, 0.1, width=4, batch=16, samples=2, points=2, synthetic=240, candidates=2),
        "quick": preset(40, 8, width=8, batch=128, samples=5, points=2, candidates=3),
        "paper": preset(25, 5, width=64, batch=256, samples=20, points=6),
    },
    methods=METHODS,
    datasets=lambda folder: (DATASET,),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        better("accuracy", ("noisy-adam",), larger=True),
        better("accuracy", ("sgd", "adam"), larger=True),
        better("nll", ("noisy-adam",), larger=False),
        better("nll", ("sgd", "adam"), larger=False),
        better("ece", ("sgd", "adam"), larger=False),
    ),
    published=Path(__file__).with_name("published") / "cifar10.json",
    devices=("cuda", "cpu"),
    figures=figures,
)
