"""A model as a folder: tensors by safetensors, everything else as JSON, nothing unpickled."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.errors import BayesruleError, InvalidArgument, Unsupported, need_whole
from bayesrule.nn.bayesian_module import BayesianModule, need_bayesian, uncompiled
from bayesrule.nn.bayesianize import bayesianize
from bayesrule.nn.conversion import ConvertedParameter
from bayesrule.nn.layer import BayesianLayer
from bayesrule.nn.layouts import refuse_lazy
from bayesrule.nn.model_folder import ModelFolderError, read_folder, write_folder
from bayesrule.nn.selection import Selector
from bayesrule.nn.spec import from_spec, to_spec

SHOWN = 5
"""Differences that a message names."""


def save(bnn: BayesianModule, folder: str | os.PathLike[str]) -> Path:
    """Write ``model.safetensors`` and ``config.json`` into a folder, which is made if needed.

    Each file appears whole or not at all: a crash leaves the last good model readable.

    Args:
        bnn: The model.
        folder: Where to.
    """
    bnn = uncompiled(bnn)
    need_bayesian(bnn, "br.save")
    need_whole(bnn, "br.save")
    write_folder(Path(folder), module_config(bnn), module_tensors(bnn))
    return Path(folder)


def load(folder: str | os.PathLike[str], into: nn.Module) -> BayesianModule:
    """Read a model saved by `save`; torch's generators stay as they are.

    Args:
        folder: Where from.
        into: A plain network of the architecture that was converted; it is left as it is.
    """
    if isinstance(into, BayesianModule):
        raise InvalidArgument(
            "A model is loaded into the plain network it was converted from", got="a converted model",
            remedy="Build that network anew; br.mean_module gives one back.",
        )  # fmt: skip
    path = Path(folder)
    config, tensors = read_folder(path)
    refuse_lazy(into)
    try:
        _check_fits(config, into, path)
        with torch.random.fork_rng(devices={p.device for p in into.parameters() if p.is_cuda}):
            bnn = rebuild(config, into)
        fill(bnn, tensors, path)
    except BayesruleError:
        raise
    except Exception as error:  # a configuration that no version of `save` wrote can fail anywhere
        raise ModelFolderError(
            f"The model in {path} cannot be built on this module", got=f"{type(error).__name__}: {error}"
        ) from error
    return bnn


def module_config(bnn: BayesianModule) -> dict[str, Any]:
    """All but the numbers: how the network was converted."""
    recipe = bnn.conversion.recipe
    return {
        "posterior": {name: to_spec(family) for name, family in recipe.posterior.items()},
        "prior": {name: to_spec(prior) for name, prior in recipe.prior.items()},
        "estimator": {name: to_spec(estimator) for name, estimator in recipe.estimator.items()},
        "bias": recipe.bias,
        "likelihood": None if bnn.likelihood is None else to_spec(bnn.likelihood),
        "shared": sorted(bnn.draws.shared),
        "parameters": [asdict(row) for row in bnn.conversion],
    }


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The numbers of a module, by name, each in memory of its own; tied ones once."""
    return {name: _own(tensor) for name, tensor in _unique(_state(module)).items()}


def rebuild(config: dict[str, Any], into: nn.Module) -> BayesianModule:
    """The conversion once more, with what needed an example input (uses in a pass) as it was found then."""
    likelihood = None if config["likelihood"] is None else from_spec("likelihood", config["likelihood"])
    posterior, prior, estimator = (_by_layer(kind, config[kind]) for kind in ("posterior", "prior", "estimator"))
    layers = _any_of(set(config["posterior"]))
    bnn = bayesianize(into, posterior, prior, estimator, likelihood, layers=layers, bias=config["bias"])
    bnn.draws.shared = shared = set(config["shared"])
    asked = bnn.conversion.recipe.estimator
    for name, layer in bnn.module.named_modules():
        drawn = isinstance(layer, BayesianLayer) and "weight" in layer.homes and name in asked
        if drawn and layer.homes["weight"].name not in shared:
            layer.estimator = asked[name]
    rows = (ConvertedParameter(**{**row, "shape": tuple(row["shape"])}) for row in config["parameters"])
    bnn.conversion = replace(bnn.conversion, rows=tuple(rows))
    return bnn


def _by_layer(kind: str, specs: Mapping[str, Any]) -> dict[Selector, Any]:
    """Recipes by the layers that had them, each by its very name: one might be called like a preset or a pattern."""
    layers: dict[str, set[str]] = defaultdict(set)
    for name, spec in specs.items():
        layers[json.dumps(spec)].add(name)
    return {_any_of(names): from_spec(kind, json.loads(spec)) for spec, names in layers.items()}


def _any_of(names: set[str]) -> Selector:
    return lambda name, _: name in names


def fill(bnn: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Give a module the numbers that `module_tensors` took from one alike."""
    state = bnn.state_dict(keep_vars=True)
    have = {name: list(tensor.shape) for name, tensor in _unique(state).items()}
    _compare({name: list(tensor.shape) for name, tensor in tensors.items()}, have, path)
    for name, tensor in tensors.items():  # a likelihood, or one layer, may have another dtype than the rest
        state[name].data = state[name].data.to(tensor.dtype)
    bnn.load_state_dict(tensors, strict=False)  # tied tensors are kept once


def _check_fits(config: dict[str, Any], into: nn.Module, path: Path) -> None:
    have = {name: list(parameter.shape) for name, parameter in into.named_parameters()}
    _compare({row["name"]: row["shape"] for row in config["parameters"]}, have, path)


def _compare(saved: dict[str, list[int]], have: dict[str, list[int]], path: Path) -> None:
    differing = [name for name in {**saved, **have} if saved.get(name) != have.get(name)]
    if not differing:
        return
    named = [f"{name}: saved {saved.get(name)}, module {have.get(name)}" for name in differing[:SHOWN]]
    more = [f"and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
    raise ModelFolderError(
        f"The model in {path} does not fit the module", got=", ".join(named + more),
        remedy="Build the network with the architecture that was saved.",
    )  # fmt: skip


def _state(module: nn.Module) -> dict[str, Tensor]:
    state = module.state_dict()
    if foreign := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise Unsupported(
            "A model folder keeps tensors only", got=f"other extra state in {foreign[:SHOWN]}",
            remedy="Keep it as a buffer, or outside the model.",
        )  # fmt: skip
    return state


def _unique(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once: tied ones stand in a state several times."""
    seen: set[tuple[Any, ...]] = set()
    unique = {}
    for name, tensor in state.items():
        key = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride())
        if key not in seen or tensor.numel() == 0:
            unique[name] = tensor
        seen.add(key)
    return unique


def _own(tensor: Tensor) -> Tensor:
    """In memory that no other tensor uses: safetensors refuses overlapping views."""
    whole = tensor.detach().cpu().contiguous()
    return whole if whole.untyped_storage().nbytes() == whole.nbytes else whole.clone()
