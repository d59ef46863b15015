"""A pruned network in one safetensors file: zeros left out, cuts beside the numbers, nothing unpickled."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument
from bayesrule.prune.cutting import apply
from bayesrule.prune.plan import Cut
from bayesrule.prune.pruning import Pruning
from bayesrule.prune.sparse import SparseTensor, dense_state, sparse_state
from bayesrule.typing import Prunable

FORMAT, VERSION = "bayesrule-pruned", 1
_PIECES = ("starts", "columns", "values")


def save_pruned(module: nn.Module, file: str | os.PathLike[str]) -> Path:
    """Write a network that `prune` returned.

    Args:
        module: The network; it may have been trained further, as long as its layers are the same.
        file: Where to; conventionally ``*.safetensors``.
    """
    pruning = getattr(module, "pruning", None)
    if not isinstance(pruning, Pruning):
        raise InvalidArgument("Only a network from br.prune can be saved as a pruned one", got=type(module).__name__)
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    for name, tensor in sparse_state(module).items():
        if isinstance(tensor, SparseTensor):
            shapes[name] = list(tensor.shape)
            tensors |= {f"{name}:{piece}": getattr(tensor, piece) for piece in _PIECES}
        else:
            tensors[name] = tensor.clone(memory_format=torch.contiguous_format)
    cuts = [_plain(cut) for cut in pruning.cuts]
    header = {"format": FORMAT, "version": VERSION, "cuts": cuts, "sparse": shapes}
    path = Path(file)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(to_bytes(tensors, metadata={"bayesrule": json.dumps(header)}))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load_pruned(file: str | os.PathLike[str], into: nn.Module) -> nn.Module:
    """Read what `save_pruned` wrote.

    Args:
        file: Where from.
        into: A plain network of the architecture that was converted, before pruning; it is left as it is.

    Returns:
        A new, smaller network, in evaluation mode.
    """
    path = Path(file)
    header, tensors = _read(path)
    if isinstance(into, Prunable) or isinstance(getattr(into, "pruning", None), Pruning):
        got = "a converted model" if isinstance(into, Prunable) else "a network that has been pruned"
        raise InvalidArgument(
            f"The network in {path} goes into a plain one", got=f"into={got}",
            remedy="Build the network anew, as it was before br.bayesianize and br.prune.",
        )  # fmt: skip
    try:
        state: dict[str, Tensor | SparseTensor] = dict(tensors)
        for name, shape in header["sparse"].items():
            state[name] = SparseTensor(tuple(shape), *(tensors[f"{name}:{piece}"] for piece in _PIECES))
            for piece in _PIECES:
                del state[f"{name}:{piece}"]
        module = copy.deepcopy(into)
        for entry in header["cuts"]:
            _apply_one(module, entry)
        dense = dense_state(state)
        _require_same_shapes(module, dense)
        module.load_state_dict(dense)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise InvalidArgument(
            f"The network in {path} does not fit the module", got=str(error).splitlines()[0],
            remedy="Build the network with the architecture that was pruned.",
        ) from error  # fmt: skip
    return module.eval()


def _apply_one(module: nn.Module, entry: Mapping[str, Any]) -> None:
    """Cut one layer, or say which one cannot be cut like that."""
    layer = entry["layer"]
    if layer not in dict(module.named_modules()):
        raise ValueError(f"no layer {layer!r}")
    try:
        apply(module, [_cut(entry, module)])
    except (AttributeError, IndexError, RuntimeError) as error:
        raise ValueError(f"a layer {layer!r} ({module.get_submodule(layer)}) without the units to be kept") from error


def _require_same_shapes(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """That the file has what the module has, after the cuts."""
    own = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name in [*own, *state]:
        if name not in own or name not in state:
            raise ValueError(f"a module {'without' if name in state else 'with'} {name!r}, unlike the file")
        if own[name] != tuple(state[name].shape):
            raise ValueError(
                f"{name!r} of shape {own[name]} after the cuts, where the file has {tuple(state[name].shape)}"
            )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        content = path.read_bytes()
        tensors = from_bytes(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__") or {}
        header = json.loads(metadata.get("bayesrule", "{}"))
    except FileNotFoundError as error:
        raise InvalidArgument(f"There is no file {path}", remedy="Check the name and the folder.") from error
    except (OSError, SafetensorError, ValueError) as error:
        raise InvalidArgument(f"{path} cannot be read", got=error, remedy="Restore it from a copy.") from error
    if not isinstance(header, dict) or (header.get("format"), header.get("version")) != (FORMAT, VERSION):
        raise InvalidArgument(
            f"{path} is not a pruned network of this version of bayesrule", got="another kind of file",
            remedy="Give a file written by save_pruned.",
        )  # fmt: skip
    return header, tensors


def _plain(cut: Cut) -> dict[str, Any]:
    """Without what only changes numbers."""
    return {key: value for key, value in vars(cut).items() if key != "absorbed"} | {"offset": cut.offset is not None}


def _cut(entry: Mapping[str, Any], module: nn.Module) -> Cut:
    """With zeros for the offset: the bias it went into is among the numbers."""
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    cut = Cut(**{**entry, **lists, "offset": None})
    if not entry["offset"]:
        return cut
    outputs = len(module.get_submodule(cut.layer).weight) if cut.outputs is None else len(cut.outputs)  # type: ignore[arg-type]
    return replace(cut, offset=torch.zeros(outputs, dtype=torch.float64))
