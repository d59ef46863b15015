"""RMSE and log-likelihood on the splits of the regression benchmark: what Tables 1 and 4 share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Preset, PresetName
from bayesrule.experiments.nng.choices import EVERY, WEAK_NOISE, choice, conventions
from bayesrule.experiments.nng.data import splits_of, tables
from bayesrule.experiments.nng.protocol import Setting, Stacked, as_cell, by_program, by_split, mark, scores
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import Table

METHODS = ("bbb", "noisy-adam", "noisy-kfac", "noisy-ekfac")
PLAIN, VALIDATED, WEAK = "λ=1", "validated", "validated, Gamma(1, 0.01) noise prior"
FOR_ALL = "one setting for all sets, Gamma(1, 0.01) noise prior"
VARIANTS = (PLAIN, VALIDATED, WEAK, FOR_ALL)
SCORES = {"rmse": -1, "log_likelihood": 1}
"""And which sign is better."""
METRICS = (*SCORES, "rmse_worst", "rmse_of_constant", "rmse_behind_kfac", "log_likelihood_behind_kfac")
"""``rmse_worst`` is that of the worst split; ``rmse_of_constant``: at worst, over that of predicting the training rows'
mean; the last two count splits on which noisy K-FAC is better."""
REFERENCE = "noisy-kfac"
QUICK_SETS = ("boston", "concrete", "energy", "yacht")
PAPER_SETS = ("boston", "concrete", "energy", "kin8nm", "naval", "protein", "yacht", "year")
DEVIATIONS: Mapping[str, Mapping[str, Any]] = {
    "kin8nm": {"epochs": 500},
    "naval": {"epochs": 200, "beta": 0.01},
    "protein": {"epochs": 50},
}
"""Where a run differs from the others, in the same way for every method: large sets make many steps in an epoch."""
TWO_LAYERS = (50, 50)
T_INV = {"noisy-ekfac": 500, "noisy-kfac-exact": 500}
"""Steps between eigendecompositions, which cost more than other inverses."""


def presets(hidden: Sequence[int] | None) -> dict[PresetName, Preset]:
    """Of a table of networks with these hidden layers; None for one layer of the paper's width."""
    common = {"hidden": None if hidden is None else list(hidden)}
    smoke = {"splits": 2, "epochs": 2, "samples": 4, "variants": [PLAIN, VALIDATED], "deviations": {}}
    quick = {"splits": 5, "epochs": 100, "samples": 100, "variants": [PLAIN, VALIDATED], "deviations": {}}
    paper = {"splits": 20, "epochs": 1000, "samples": 1000, "variants": list(VARIANTS), "deviations": DEVIATIONS}
    return {
        "smoke": Preset(("yacht",), METHODS, smoke | common, synthetic=True),
        "quick": Preset(QUICK_SETS, METHODS, quick | common),
        "paper": Preset(PAPER_SETS, METHODS, paper | common),
    }


def run(context: Context) -> list[Row]:
    """Scores of every set, method and variant, and how they compare."""
    rows = []
    for table in tables(context):
        data = stacked_splits(context, table)
        found = {method: _cells(context, table, data, method) for method in context.methods}
        constant = (data.y_test.double().square().mean((1, 2)).sqrt() * data.scale).tolist()
        for variant in context.preset.settings["variants"]:
            for method, cells in found.items():
                rows += _rows(table.name, method, variant, cells[variant], constant,
                              found.get(REFERENCE, {}).get(variant))  # fmt: skip
    return rows


def stacked_splits(context: Context, table: Table) -> Stacked:
    """Those that the preset uses."""
    return Stacked.of([table.split(number) for number in range(splits_of(context, table))])


def setting_of(context: Context, dataset: str, method: str, variant: str) -> Setting:
    """The plain setting, or the validated one; and how the set differs from the others."""
    settings = context.preset.settings
    base = Setting(method, epochs=settings["epochs"], samples=settings["samples"], T_inv=T_INV.get(method))
    changes = {"hidden": settings["hidden"], **conventions(method), **settings["deviations"].get(dataset, {})}
    weak = variant in (WEAK, FOR_ALL)
    if variant != PLAIN:
        deep = settings["hidden"] is not None
        changes |= choice(EVERY if variant == FOR_ALL else dataset, method, weak_noise=weak, deep=deep)
    if weak:
        changes["noise_prior"] = WEAK_NOISE
    return base.changed(changes)


def _cells(context: Context, table: Table, data: Stacked, method: str) -> dict[str, dict[str, float]]:
    """By variant."""
    found: dict[str, dict[str, float]] = {}
    for variants in variants_by_program(context, table.name, method):
        cell, count = measured(context, table, data, method, variants), len(data)
        whole = {metric: by_split(cell, metric) for metric in SCORES}
        for place, variant in enumerate(variants):
            part = slice(place * count, (place + 1) * count)
            found[variant] = as_cell({metric: values[part] for metric, values in whole.items()})
    return found


def variants_by_program(context: Context, dataset: str, method: str) -> list[list[str]]:
    """Variants whose replicas can be trained at once."""
    variants = context.preset.settings["variants"]
    groups = by_program([setting_of(context, dataset, method, variant) for variant in variants])
    return [[variants[number] for number in numbers] for numbers in groups]


def measured(
    context: Context, table: Table, data: Stacked, method: str, variants: Sequence[str]
) -> Mapping[str, float]:
    """Scores of all splits, variant by variant. A cell is what one program trains."""
    own = [setting_of(context, table.name, method, variant) for variant in variants]
    settings = [setting for setting in own for _ in range(len(data))]
    seeds = [context.seed + number for number in range(len(data))] * len(own)
    return context.cell(
        table.name, method, mark(own),
        compute=lambda: as_cell(scores(settings, data.repeated(len(own)), table.name, seeds, context.device)),
    )  # fmt: skip


def _rows(
    dataset: str, method: str, variant: str, cell: Mapping[str, float], constant: Sequence[float],
    reference: Mapping[str, float] | None,
) -> list[Row]:  # fmt: skip
    def of(metric: str, value: float) -> Row:
        return Row(dataset, method, variant, metric, value, None, len(errors))

    errors = by_split(cell, "rmse")
    rows = [
        Row.over(by_split(cell, metric), dataset=dataset, method=method, variant=variant, metric=metric)
        for metric in SCORES
    ]
    rows.append(of("rmse_worst", max(errors)))
    rows.append(of("rmse_of_constant", max(own / theirs for own, theirs in zip(errors, constant, strict=True))))
    if reference is not None:
        for metric, sign in SCORES.items():
            pairs = zip(by_split(cell, metric), by_split(reference, metric), strict=True)
            rows.append(of(f"{metric}_behind_kfac", float(sum(sign * own < sign * theirs for own, theirs in pairs))))
    return rows
