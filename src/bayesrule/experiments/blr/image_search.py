"""Settings chosen on validation data, alike for every method: as many candidates, the first seed, the best NLL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from bayesrule.experiments.blr.image_recipe import Recipe
from bayesrule.experiments.context import Context

Score = Callable[[Context, str, Recipe], float]
"""The validation NLL of a method whose network a recipe trains."""
BASE = {"laplace": "adamw", "ensemble": "adamw"}
"""Methods that are made of networks trained by another."""


def candidates(context: Context, dataset: str, method: str) -> list[Recipe]:
    """The recipes a method is tuned over: every combination of its grid's values."""
    settings: Mapping[str, Any] = context.preset.settings[dataset]
    trained_by = BASE.get(method, method)
    grid = {**settings.get("options", {}).get(trained_by, {}), **settings["grids"][trained_by]}
    values = [value if isinstance(value, list) else [value] for value in grid.values()]
    return [
        Recipe(
            settings["network"], dataset, trained_by, settings["epochs"], tuple(zip(grid, chosen, strict=True)),
            settings["batch_size"], settings.get("flips", False), context.seed, settings.get("train", 0),
            settings.get("synthetic", 0),
        )
        for chosen in product(*values)
    ]  # fmt: skip


def chosen(context: Context, dataset: str, method: str, score: Score) -> Recipe:
    """The candidate with the best NLL on validation data; a single one needs no training to be chosen."""
    found = candidates(context, dataset, method)
    return found[0] if len(found) == 1 else min(found, key=partial(score, context, method))


def over_seeds(context: Context, dataset: str, method: str, score: Score) -> list[Recipe]:
    """The chosen recipe with every seed."""
    best = chosen(context, dataset, method, score)
    return [replace(best, seed=context.seed + number) for number in range(context.preset.settings[dataset]["seeds"])]
