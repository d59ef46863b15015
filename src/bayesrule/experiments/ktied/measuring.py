"""Scores of trained models as cells, and as rows over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from bayesrule.data import LabelledSet
from bayesrule.experiments.context import Context
from bayesrule.experiments.ktied.evaluation import Score, evaluate
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.training import examples
from bayesrule.experiments.rows import Row
from bayesrule.nn import BayesianModule

Cell = Mapping[str, float]
SCORES = ("negative_elbo", "nll", "accuracy")
"""Of every predictive table   [Table 2, Figs. 5 and 6]."""
SPREADS = tuple(f"{metric}_seed_spread" for metric in SCORES)
DRAW_SPREAD = "negative_elbo_draw_spread"


def scored(context: Context, bnn: BayesianModule, recipe: Recipe, *, valid: bool = False) -> dict[str, float]:
    """What `evaluate` finds on the test part (or the validation part), as the plain numbers of a cell."""
    data = test_data(context, recipe)
    return plain(evaluate(bnn, recipe, data, valid=valid, draws=context.preset.settings["draws"]))


def test_data(context: Context, recipe: Recipe) -> LabelledSet:
    """The recipe's data; a preset may keep only the first test examples."""
    data = examples(recipe, context.data, context.device)
    kept = context.preset.settings["test"].get(recipe.shape.dataset)
    return data.first(test=kept) if kept else data


def plain(scores: Mapping[str, Score]) -> dict[str, float]:
    """Value, standard error and spread by name; those that are unknown are left out."""
    found: dict[str, float] = {}
    for name, score in scores.items():
        parts = {name: score.value, f"{name}_sem": score.sem, f"{name}_draw_spread": score.spread}
        found |= {part: value for part, value in parts.items() if value is not None and not math.isnan(value)}
    return found


def score_rows(
    cells: Sequence[Cell], metrics: Sequence[str], *, dataset: str, method: str, variant: str = ""
) -> list[Row]:
    """A row for each metric: its mean over seeds, and the mean over seeds of its standard error over test examples.

    Metrics that end in ``_seed_spread`` are standard deviations over seeds, which a single seed has none of.
    """
    rows = []
    for metric in metrics:
        base = metric.removesuffix("_seed_spread")
        values = [cell[base] for cell in cells]
        errors = [cell[f"{base}_sem"] for cell in cells if f"{base}_sem" in cell]
        if base == metric:
            sem = fmean(errors) if errors else None
            rows.append(Row(dataset, method, variant, metric, fmean(values), sem, len(values)))
        elif len(values) > 1:
            rows.append(Row(dataset, method, variant, metric, stdev(values), None, len(values)))
    return rows
