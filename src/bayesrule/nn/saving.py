"""A model as a folder: tensors by safetensors, everything else as JSON, nothing unpickled."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from bayesrule.errors import BayesruleError
from bayesrule.nn.bayesian_module import BayesianModule
from bayesrule.nn.bayesianize import bayesianize
from bayesrule.nn.spec import from_spec, to_spec

FORMAT, VERSION = "bayesrule-model", 1
TENSORS, CONFIG = "model.safetensors", "config.json"


class ModelFolderError(BayesruleError, ValueError):
    """A folder that is not a model, or not one that fits."""


def save(bnn: BayesianModule, folder: str | os.PathLike[str]) -> Path:
    """Write ``model.safetensors`` and ``config.json`` into a folder, which is made if needed.

    Each file appears whole or not at all: a crash leaves the last good model readable.

    Args:
        bnn: The model.
        folder: Where to.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    config = json.dumps(_config(bnn), indent=2, ensure_ascii=False)
    tensors = {name: tensor.contiguous() for name, tensor in _unique(bnn.state_dict()).items()}
    # The tensors carry the configuration they belong to, so that the two can never be of different models.
    write_atomically(path / TENSORS, to_bytes(tensors, metadata={"config": config}))
    write_atomically(path / CONFIG, config.encode())
    return path


def load(folder: str | os.PathLike[str], into: nn.Module) -> BayesianModule:
    """Read a model saved by `save`.

    Args:
        folder: Where from.
        into: A plain network of the architecture that was converted; it is left as it is.
    """
    path = Path(folder)
    config, tensors = _read(path)
    _check_fits(config, into, path)
    likelihood = None if config["likelihood"] is None else from_spec("likelihood", config["likelihood"])
    posterior, prior, estimator = (
        {name: from_spec(kind, spec) for name, spec in config[kind].items()}
        for kind in ("posterior", "prior", "estimator")
    )
    converted = set(posterior)
    bnn = bayesianize(
        into, posterior, prior, estimator, likelihood, layers=lambda name, _: name in converted, bias=config["bias"]
    )
    state = bnn.state_dict()
    expected = set(_unique(state))
    if set(tensors) != expected or any(tensors[name].shape != state[name].shape for name in expected):
        wrong = sorted(set(tensors) ^ expected) or [n for n in expected if tensors[n].shape != state[n].shape]
        raise ModelFolderError(f"The tensors in {path} do not fit their configuration", got=f"differing: {wrong[:5]}")
    bnn.to(next(iter(tensors.values())).dtype)
    bnn.load_state_dict(tensors, strict=False)  # tied tensors are kept once
    bnn.draws.shared = set(config["shared"])
    return bnn


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under another name in the same folder, then rename it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
        try:
            temporary.write(content)
            temporary.flush()
            os.fsync(temporary.fileno())
            os.replace(temporary.name, path)
        except BaseException:
            Path(temporary.name).unlink(missing_ok=True)
            raise


def _config(bnn: BayesianModule) -> dict[str, Any]:
    recipe = bnn.conversion.recipe
    return {
        "format": FORMAT,
        "version": VERSION,
        "posterior": {name: to_spec(family) for name, family in recipe.posterior.items()},
        "prior": {name: to_spec(prior) for name, prior in recipe.prior.items()},
        "estimator": {name: to_spec(estimator) for name, estimator in recipe.estimator.items()},
        "bias": recipe.bias,
        "likelihood": None if bnn.likelihood is None else to_spec(bnn.likelihood),
        "shared": sorted(bnn.draws.shared),
        "parameters": {row.name: list(row.shape) for row in bnn.conversion},
    }


def _unique(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor once: tied ones stand in a state several times."""
    seen: set[tuple[Any, ...]] = set()
    unique = {}
    for name, tensor in state.items():
        key = (tensor.data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if key not in seen or tensor.numel() == 0:
            unique[name] = tensor
        seen.add(key)
    return unique


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    for name in (TENSORS, CONFIG):
        if not (path / name).is_file():
            raise ModelFolderError(
                f"{path} is not a model folder: it has no {name}",
                got=sorted(entry.name for entry in path.iterdir()) if path.is_dir() else "no such folder",
                remedy="Give a folder written by br.save or bayesrule fit.",
            )
    _parse(path, (path / CONFIG).read_bytes())
    try:
        with safe_open(path / TENSORS, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFolderError(
            f"{path / TENSORS} cannot be read", got=error, remedy="Restore it from a copy."
        ) from error
    return _parse(path, metadata.get("config", "").encode()), tensors


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
    except ValueError as error:
        raise ModelFolderError(f"The configuration in {path} is not JSON", got=error) from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFolderError(f"{path} was not written by bayesrule", got=f"a configuration without format {FORMAT!r}")
    if config.get("version") != VERSION:
        raise ModelFolderError(
            f"{path} has another version of the format than this one, {VERSION}", got=config.get("version"),
            remedy="Use the version of bayesrule that wrote it.",
        )  # fmt: skip
    missing = {"posterior", "prior", "estimator", "bias", "likelihood", "shared", "parameters"} - set(config)
    if missing:
        raise ModelFolderError(f"The configuration in {path} is incomplete", got=f"missing {sorted(missing)}")
    return config


def _check_fits(config: dict[str, Any], into: nn.Module, path: Path) -> None:
    have = {name: list(parameter.shape) for name, parameter in into.named_parameters()}
    if have != config["parameters"]:
        saved = config["parameters"]
        differing = [name for name in {**saved, **have} if saved.get(name) != have.get(name)]
        detail = ", ".join(f"{name}: saved {saved.get(name)}, module {have.get(name)}" for name in differing[:5])
        raise ModelFolderError(
            f"The model in {path} does not fit the module", got=detail,
            remedy="Build the network with the architecture that was saved.",
        )  # fmt: skip
