"""Table 3: the correlation of predictive variances with those of HMC, and the ratio of their means."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import correlation, fmean

import torch

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.nng.active import HIDDEN, Trial, fitted, small_settings
from bayesrule.experiments.nng.claims import Key, needing
from bayesrule.experiments.nng.data import known_sets, tables
from bayesrule.experiments.nng.protocol import Setting, Stacked, as_cell, by_split, mark
from bayesrule.experiments.nng.regression import PLAIN, VALIDATED
from bayesrule.experiments.nng.table2 import MISSING, SETS
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Split, Table

METHODS = (
    "bbb", "noisy-adam", "noisy-kfac", "noisy-kfac-exact", "noisy-ekfac", "noisy-block-tridiagonal", "noisy-full",
)  # fmt: skip
METRICS = ("correlation", "variance_ratio", "trials_ahead_of_bbb", "hmc_r_hat")
"""Means over trials; on how many the correlation is above BBB's; and the largest R-hat of HMC's outputs."""
BASELINE = "bbb"
TRIALS = 10


def run(context: Context) -> list[Row]:
    """HMC's variances trial by trial, those of all trials of another method at once."""
    rows = []
    for table in tables(context):
        if importlib.util.find_spec("numpyro") is None:
            context.skipped += [f"{method} on {table.name}: {MISSING}" for method in context.methods]
            continue
        truth = [_hmc_cell(context, table, trial) for trial in range(context.preset.settings["trials"])]
        found = {method: _correlations(context, table, method, truth) for method in context.methods}
        worst = max(cell["r_hat"] for cell in truth)
        for variant, (method, by_variant) in product((PLAIN, VALIDATED), found.items()):  # HMC has λ = 1 in either
            named, values = {"dataset": table.name, "method": method, "variant": variant}, by_variant[variant]
            rows += [Row.over(values[name], metric=name, **named) for name in ("correlation", "variance_ratio")]
            if BASELINE in found:
                pairs = zip(values["correlation"], found[BASELINE][variant]["correlation"], strict=True)
                ahead = float(sum(own > theirs for own, theirs in pairs))
                rows.append(Row(table.name, method, variant, "trials_ahead_of_bbb", ahead, None, len(truth)))
            rows.append(Row(table.name, method, variant, "hmc_r_hat", worst, None, len(truth)))
    return rows


def _split(context: Context, table: Table, trial: int) -> Split:
    settings = context.preset.settings
    rows = Trial.shuffled(len(table.x), settings["labelled"], settings["unlabelled"], context.seed + trial)
    rows.pool.clear()
    return rows.split(table)


def _correlations(
    context: Context, table: Table, method: str, truth: Sequence[Mapping[str, float]]
) -> dict[str, dict[str, list[float]]]:
    """By variant."""
    settings = small_settings(method, table.name, context.preset.settings["setting"])
    cell = context.cell(table.name, method, mark(settings), compute=lambda: _variances(context, table, settings))
    found: dict[str, dict[str, list[float]]] = {}
    for variant, (trial, known) in product(settings, enumerate(truth)):
        own, theirs = by_split(cell, f"{variant} trial {trial}"), by_split(known, "variance")
        values = found.setdefault(variant, {"correlation": [], "variance_ratio": []})
        values["correlation"].append(correlation(own, theirs))
        values["variance_ratio"].append(fmean(own) / fmean(theirs))
    return found


def _variances(context: Context, table: Table, settings: Mapping[str, Setting]) -> dict[str, float]:
    """Of all trials with every setting, at once."""
    trials = range(context.preset.settings["trials"])
    data = Stacked.of([_split(context, table, trial) for trial in trials], torch.float64).repeated(len(settings))
    each = [(variant, trial) for variant in settings for trial in trials]
    seeds = [context.seed + trial for _, trial in each]
    predicted = fitted([settings[variant] for variant, _ in each], data, table.name, seeds).variance
    named = zip(each, predicted, strict=True)
    return as_cell({f"{variant} trial {trial}": own.flatten().tolist() for (variant, trial), own in named})


def _hmc_cell(context: Context, table: Table, trial: int) -> dict[str, float]:
    return context.cell(table.name, "hmc", trial, compute=lambda: _hmc_variances(context, table, trial))


def _hmc_variances(context: Context, table: Table, trial: int) -> dict[str, float]:
    from torch import nn

    from bayesrule.inference.hmc import hmc
    from bayesrule.predict import predict

    split, options = _split(context, table, trial), context.preset.settings["hmc"]
    x, y, at = (torch.from_numpy(each) for each in (split.x_train, split.y_train, split.x_test))
    net = nn.Sequential(nn.Linear(x.shape[1], *HIDDEN), nn.ReLU(), nn.Linear(*HIDDEN, 1)).double()
    found = hmc(net, x, y.unsqueeze(-1), seed=context.seed + trial, **options)
    predictive = predict(found.network, at, samples=options["chains"] * options["draws"])
    variances = predictive.epistemic_std.square().flatten().tolist()
    told = {"r_hat": found.diagnostics.output_r_hat, "divergences": float(found.diagnostics.divergences)}
    return {**as_cell({"variance": variances}), **told}


def _boston(method: str, rows: Sequence[Row]) -> Verdict:
    names = ("correlation", "trials_ahead_of_bbb")
    keys: list[Key] = [("boston", method, PLAIN, name) for name in names]

    def verdict(found: Mapping[Key, float]) -> Verdict:
        value, ahead = (found[key] for key in keys)
        return Verdict.of(value >= 0.9 and ahead >= 9, f"{value:.3f}, ahead in {ahead:.0f}")

    return needing(rows, keys, verdict, TRIALS)


def _ahead(method: str, rows: Sequence[Row]) -> Verdict:
    keys: list[Key] = [(name, each, PLAIN, "correlation") for name in SETS for each in (method, BASELINE)]

    def verdict(found: Mapping[Key, float]) -> Verdict:
        gains = {name: found[name, method, PLAIN, "correlation"] - found[name, BASELINE, PLAIN, "correlation"]
                 for name in SETS}  # fmt: skip
        told = ", ".join(f"{name} {gain:+.3f}" for name, gain in gains.items())
        return Verdict.of(sum(gain >= 0.05 for gain in gains.values()) >= 4, told)

    return needing(rows, keys, verdict, TRIALS)


def _tridiagonal(rows: Sequence[Row]) -> Verdict:
    pair = ("noisy-block-tridiagonal", "noisy-kfac")
    keys: list[Key] = [(name, each, PLAIN, "correlation") for name in SETS for each in pair]

    def verdict(found: Mapping[Key, float]) -> Verdict:
        means = [fmean(found[name, each, PLAIN, "correlation"] for name in SETS) for each in pair]
        return Verdict.of(means[0] >= means[1], f"{means[0]:.4f} and {means[1]:.4f}")

    return needing(rows, keys, verdict, TRIALS)


def _exact(rows: Sequence[Row]) -> Verdict:
    key: Key = ("boston", "noisy-kfac-exact", PLAIN, "variance_ratio")
    return needing(rows, [key], lambda found: Verdict.of(found[key] >= 0.5, f"{found[key]:.3f}"), TRIALS)


TABLE3 = Experiment(
    id="nng/table3",
    title="Noisy natural gradient, Table 3: predictive variances beside those of HMC",
    presets={
        "smoke": Preset(
            ("yacht",), METHODS,
            {"trials": 1, "labelled": 20, "unlabelled": 10, "hmc": {"chains": 2, "warmup": 5, "draws": 5},
             "setting": {"epochs": 4, "samples": 5}},
            synthetic=True,
        ),
        "quick": Preset(
            ("boston",), METHODS,
            {"trials": 2, "labelled": 20, "unlabelled": 100, "hmc": {"chains": 4, "warmup": 300, "draws": 300},
             "setting": {"epochs": 2000, "samples": 1000}},
        ),
        "paper": Preset(
            SETS, METHODS,
            {"trials": TRIALS, "labelled": 20, "unlabelled": 100, "hmc": {"chains": 4, "warmup": 1000, "draws": 2500},
             "setting": {"epochs": 5000, "samples": 10_000}},
        ),
    },
    methods=METHODS,
    datasets=known_sets,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        *(
            Claim(f"{told}: {method} {words}", partial(check, method))
            for method in ("noisy-kfac", "noisy-kfac-exact")
            for told, words, check in (
                ("Boston", "correlates with 0.90 or more, ahead of BBB in 9 of 10 trials or more", _boston),
                ("All sets", "ahead of BBB by 0.05 or more on 4 of 6 or more", _ahead),
            )
        ),
        Claim("block-tridiagonal no worse than noisy-kfac, on average over the sets", _tridiagonal),
        Claim("Boston, exact damping: half of HMC's mean variance or more", _exact),
    ),
    published=Path(__file__).with_name("published") / "table3.json",
    packages=("numpyro", "jax"),
)  # fmt: skip
