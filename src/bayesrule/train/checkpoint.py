"""Training state in one file: tensors by safetensors, the rest as JSON in its header; nothing unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from bayesrule.errors import BayesruleError
from bayesrule.nn.model_folder import write_atomically

TENSOR = "__tensor__"


class CheckpointError(BayesruleError, ValueError):
    """A file that is not a checkpoint, or not one of this run."""


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a tree of dicts, lists, numbers, strings and tensors; the file appears whole or not at all."""
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_pack(state, tensors))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_bytes(tensors, metadata={"checkpoint": plain}))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `write_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
        return _unpack(json.loads(metadata["checkpoint"]), tensors)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} is not a readable checkpoint", got=error, remedy="Start again without it."
        ) from error


def remove_leftovers(path: Path) -> None:
    """Remove what writes of this checkpoint left behind when their process was killed."""
    for leftover in path.parent.glob(f".{path.name}.*"):
        leftover.unlink(missing_ok=True)


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach().contiguous().clone()
        return {TENSOR: key}
    if isinstance(value, dict):  # as pairs: keys may be numbers
        return {"__dict__": [[key, _pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_pack(item, tensors) for item in value]
    return value


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        return {key: _unpack(item, tensors) for key, item in value["__dict__"]}
    return value
