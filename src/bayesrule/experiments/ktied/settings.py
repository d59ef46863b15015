"""The settings of all runs, from the file `settings.json`, and the recipes they make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import PRESETS, Preset, PresetName
from bayesrule.experiments.ktied.models import MODELS
from bayesrule.experiments.ktied.recipe import Recipe, resnet_recipe

FILE = Path(__file__).with_name("settings.json")
MODEL_OF = {shape.dataset: name for name, shape in MODELS.items()}
THREE = ("mnist", "cifar-100", "imdb")
"""The data sets of the perceptron, the LeNet and the LSTM."""
POSTERIORS = ("mean-field", "1-tied", "2-tied", "3-tied")
SNR_LABELS = (1000, 5000, 9000)
"""Steps of Fig. 6, right; the smallest preset measures at three earlier steps under the same names."""


@lru_cache(maxsize=1)
def all_settings() -> dict[str, Any]:
    """The whole file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def presets(
    datasets: Sequence[str],
    methods: Sequence[str],
    runs: Iterable[str],
    *,
    default_datasets: Sequence[str] | None = None,
    quick_methods: Sequence[str] | None = None,
    smoke_methods: Sequence[str] | None = None,
    parts: Iterable[str] = (),
) -> dict[PresetName, Preset]:
    """The three presets of an experiment that uses the named kinds of runs, and further parts of the file.

    The quick one is for MNIST where the experiment knows it; ``default_datasets`` limits all of them.
    """
    runs, parts = tuple(runs), tuple(parts)
    chosen_methods = {"quick": quick_methods or methods, "smoke": smoke_methods or methods, "paper": methods}
    default = default_datasets or datasets
    quick = [name for name in default if name == "mnist"] or default
    return {
        name: Preset(
            tuple(quick if name == "quick" else default),
            tuple(chosen_methods[name]),
            _settings(name, datasets, runs) | {part: all_settings()[name][part] for part in parts},
            synthetic=name == "smoke",
        )
        for name in PRESETS
    }


def _settings(preset: PresetName, datasets: Sequence[str], runs: tuple[str, ...]) -> dict[str, Any]:
    every = all_settings()[preset]
    used = {name: {run: every["runs"][name][run] for run in runs if run in every["runs"][name]} for name in datasets}
    return {"draws": every["draws"], "test": every["test"], "synthetic": every["synthetic"], "runs": used}


def seeds(context: Context, dataset: str, run: str) -> list[int]:
    """Of the repetitions of a kind of run."""
    return [context.seed + seed for seed in context.preset.settings["runs"][dataset][run]["seeds"]]


def recipe(context: Context, dataset: str, run: str, posterior: str, seed: int, **changes: Any) -> Recipe:
    """One run: the fields of the kind of run, those of its kind of posterior, and further changes."""
    settings = context.preset.settings
    spec = settings["runs"][dataset][run]
    kind = "tied" if posterior.endswith("tied") else posterior
    fields = {**spec["recipe"], **spec.get(kind, {}), "seed": seed, "synthetic": settings["synthetic"], **changes}
    fields["snr_at"] = tuple(fields.get("snr_at", ()))
    if dataset == "cifar-10":
        return resnet_recipe(posterior, **fields)
    return Recipe(MODEL_OF[dataset], posterior, **fields)


def stated(recipe: Recipe) -> str:
    """What a convergence result depends on, in words."""
    return f"σ₀ {recipe.init_std:g}, prior {recipe.prior_std:g}, lr {recipe.lr:g}"


def as_text(contents: Any) -> str:
    """The file's form: a line for each innermost object, so that a change shows where it is."""
    return f"{_lines(contents, 0)}\n"


def _lines(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or (len(flat) < 150 and not any(isinstance(part, dict) for part in value.values())):
        return flat
    inner = [f"{'  ' * (depth + 1)}{json.dumps(key)}: {_lines(part, depth + 1)}" for key, part in value.items()]
    return "{\n" + ",\n".join(inner) + "\n" + "  " * depth + "}"
