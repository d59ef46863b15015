"""The folder of a model of a table; the library built its networks, so it can build them again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

from bayesrule.data import ClassTarget, Encoder, NumberTarget, target_from_config
from bayesrule.errors import BayesruleError
from bayesrule.nn import BayesianModule
from bayesrule.nn.model_folder import ModelFolderError, read_folder, write_atomically, write_folder
from bayesrule.nn.saving import fill, module_config, module_tensors, rebuild
from bayesrule.nn.spec import from_spec, to_spec
from bayesrule.train.members import Members, Settings, Task, perceptron

METRICS = "metrics.json"
TIME = "seconds"
"""What differs between equal runs: it stands in ``metrics.json`` alone, so that equal models have equal files."""
RECIPES = ("posterior", "prior", "estimator")


def write_tabular(
    path: Path,
    encoder: Encoder,
    target: ClassTarget | NumberTarget,
    members: Members,
    task: Task,
    target_name: str,
    info: Mapping[str, Any],
) -> None:
    """Write the files of a `TabularModel`."""
    recipes: list[dict[str, Any]] = []  # members that are built alike, as they mostly are, share one
    numbers = []
    for member in members.members:
        recipe = _recipe(member)
        if recipe not in recipes:
            recipes.append(recipe)
        numbers.append(recipes.index(recipe))
    metrics = info.get("metrics", {})
    config = {
        "task": task,
        "target_name": target_name,
        "settings": _settings_config(members.settings),
        "likelihood": to_spec(members.likelihood),
        "encoder": encoder.to_config(),
        "target": target.to_config(),
        "recipes": recipes,
        "members": numbers,
        "info": {**info, "metrics": {name: value for name, value in metrics.items() if name != TIME}},
    }
    write_folder(path, config, module_tensors(members), "tabular")
    write_atomically(path / METRICS, json.dumps(_finite(metrics), indent=2).encode())


def read_tabular(path: Path) -> dict[str, Any]:
    """The attributes of a `TabularModel`; torch's generators stay as they are."""
    config, tensors = read_folder(path, "tabular")
    try:
        return _attributes(config, tensors, path)
    except ModelFolderError:
        raise
    except Exception as error:  # a configuration that no version of `write_tabular` wrote can fail anywhere
        said = error if isinstance(error, BayesruleError) else f"{type(error).__name__}: {error}"
        raise ModelFolderError(f"The model in {path} cannot be built", got=said) from error


def _attributes(config: Mapping[str, Any], tensors: dict[str, Tensor], path: Path) -> dict[str, Any]:
    encoder, target = Encoder.from_config(config["encoder"]), target_from_config(config["target"])
    task, name, info = config["task"], config["target_name"], config["info"]
    if task not in get_args(Task) or task != target.task or name != target.name or not isinstance(info, dict):
        raise ModelFolderError(f"The configuration in {path} contradicts itself", got=f"{task} of {name}")
    settings, recipes = _settings(config["settings"]), config["recipes"]
    with torch.random.fork_rng():
        built = [_member(recipes[number], task, settings) for number in config["members"]]
    members = Members(built, from_spec("likelihood", config["likelihood"]), torch.zeros(len(built)), settings)
    _check_numbers(tensors, path)
    fill(members, tensors, path)
    _check_sizes(members, len(encoder.feature_names), target, path)
    return {"encoder": encoder, "target": target, "members": members, "task": task, "target_name": name, "info": info}


def _check_numbers(tensors: Mapping[str, Tensor], path: Path) -> None:
    wrong = [
        name for name, tensor in tensors.items() if tensor.dtype != torch.float32 or not bool(tensor.isfinite().all())
    ]
    if wrong:
        raise ModelFolderError(
            f"The model in {path} holds what is not a finite number of single precision", got=", ".join(wrong[:3]),
            remedy="Restore it from a copy, or fit it again.",
        )  # fmt: skip


def _check_sizes(members: Members, features: int, target: ClassTarget | NumberTarget, path: Path) -> None:
    outputs = len(target.classes) if isinstance(target, ClassTarget) else 3 * members.settings.components
    wrong = [sizes for sizes in map(_sizes, members.members) if (sizes[0], sizes[-1]) != (features, outputs)]
    if wrong or not len(members.members):
        raise ModelFolderError(
            f"The networks in {path} do not fit its table: {features} features, {outputs} outputs",
            got=wrong[:1] or "no networks",
        )


def _recipe(member: nn.Module) -> dict[str, Any]:
    # Through JSON once, so that recipes compare as they will be read.
    return json.loads(json.dumps({"sizes": _sizes(member), **module_config(cast(BayesianModule, member))}))


def _member(recipe: Mapping[str, Any], task: Task, settings: Settings) -> BayesianModule:
    return rebuild(dict(recipe), perceptron(recipe["sizes"], task, settings.components))


def _sizes(member: nn.Module) -> list[int]:
    layers = [layer for layer in member.modules() if isinstance(layer, nn.Linear)]
    return [layers[0].in_features, *(layer.out_features for layer in layers)]


def _settings_config(settings: Settings) -> dict[str, Any]:
    plain = {item.name: getattr(settings, item.name) for item in fields(settings)}
    return {**plain, **{name: to_spec(plain[name]) for name in RECIPES}}


def _settings(config: Mapping[str, Any]) -> Settings:
    tuples = {name: tuple(value) for name, value in config.items() if isinstance(value, list)}
    recipes = {name: from_spec(name, config[name]) for name in RECIPES if name in config}
    return Settings(**{**config, **tuples, **recipes})


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no infinities."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}
