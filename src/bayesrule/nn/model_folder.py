"""The files of a model folder: written whole or not at all, read with suspicion, never unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor

from bayesrule.errors import BayesruleError

FORMAT, VERSION = "bayesrule-model", 1
TENSORS, CONFIG = "model.safetensors", "config.json"
Kind = Literal["module", "tabular"]
ENTRIES: dict[Kind, set[str]] = {
    "module": {"posterior", "prior", "estimator", "bias", "likelihood", "shared", "parameters"},
    "tabular": {"task", "target_name", "settings", "likelihood", "encoder", "target", "recipes", "members", "info"},
}
"""What the configuration of each kind of model holds: a network of the user's, or one that was fitted to a table."""
READERS: dict[Kind, str] = {"module": "br.load(folder, into=network)", "tabular": "br.load(folder)"}


class ModelFolderError(BayesruleError, ValueError):
    """A folder that is not a model, or not one that fits."""


def write_folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: Kind = "module") -> None:
    """Write both files; the folder is made if needed."""
    header = {"format": FORMAT, "version": VERSION, "kind": kind}
    text = json.dumps({**header, **config}, indent=2, ensure_ascii=False)
    # The tensors carry the configuration they belong to, so that the two can never be of different models.
    content = _with_metadata(to_bytes(dict(tensors)), {"config": text, "digest": _digest(text, tensors)})
    path.mkdir(parents=True, exist_ok=True)
    write_atomically(path / TENSORS, *content)
    write_atomically(path / CONFIG, text.encode())


def _with_metadata(content: bytes, metadata: Mapping[str, str]) -> tuple[bytes, memoryview]:
    """A safetensors file with metadata in their order: safetensors itself writes them in another one each time."""
    start, end = 8, 8 + int.from_bytes(content[:8], "little")
    entries = {"__metadata__": dict(metadata), **json.loads(content[start:end])}
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that the tensors are aligned
    return len(header).to_bytes(8, "little") + header, memoryview(content)[end:]


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Write a file under another name in the same folder, then rename it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            for piece in content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def kind_of(path: Path) -> Kind:
    """What kind of model a folder holds, by its configuration."""
    _require_files(path)
    try:
        content = (path / CONFIG).read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read", got=error) from error
    return _recognise(path / CONFIG, content)[0]


def read_folder(path: Path, kind: Kind = "module") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the tensors of a model of that kind, both checked."""
    _require_files(path)
    try:
        text, content = (path / CONFIG).read_bytes(), (path / TENSORS).read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read", got=error) from error
    _parse(path / CONFIG, text, kind)
    config, tensors = _unpack(path / TENSORS, content)
    return _parse(path / TENSORS, config.encode(), kind), tensors


def _require_files(path: Path) -> None:
    for name in (TENSORS, CONFIG):
        if not (path / name).is_file():
            raise ModelFolderError(
                f"{path} is not a model folder: it has no {name}",
                got=sorted(entry.name for entry in path.iterdir()) if path.is_dir() else "no such folder",
                remedy="Give a folder written by br.save or bayesrule fit.",
            )


def _unpack(path: Path, content: bytes) -> tuple[str, dict[str, Tensor]]:
    """The configuration inside, and the tensors.

    From bytes read once: safetensors' own reader opens a file again for its tensors, and may meet the next model there.
    """
    try:
        tensors = from_bytes(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, KeyError, ValueError) as error:
        raise ModelFolderError(f"{path} cannot be read", got=error, remedy="Restore it from a copy.") from error
    metadata = header.get("__metadata__") or {}
    if "config" not in metadata:
        raise ModelFolderError(f"{path} was not written by bayesrule", got="a file without a configuration")
    if metadata.get("digest") != _digest(metadata["config"], tensors):
        raise ModelFolderError(
            f"{path} is damaged", got="contents that differ from their digest", remedy="Restore it from a copy."
        )
    return metadata["config"], tensors


def _digest(config: str, tensors: Mapping[str, Tensor]) -> str:
    """Of all that a model is built from: safetensors checks its own header, but no numbers."""
    digest = hashlib.blake2b(config.encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _parse(path: Path, content: bytes, kind: Kind) -> dict[str, Any]:
    found, config = _recognise(path, content)
    if found != kind:
        raise ModelFolderError(
            f"{path} is of another kind of model than asked for", got=found, remedy=f"Read it by {READERS[found]}."
        )
    if missing := ENTRIES[kind] - set(config):
        raise ModelFolderError(f"The configuration in {path} is incomplete", got=f"missing {sorted(missing)}")
    return config


def _recognise(path: Path, content: bytes) -> tuple[Kind, dict[str, Any]]:
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(f"The configuration in {path} is not JSON", got=error) from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFolderError(f"{path} was not written by bayesrule", got=f"a configuration without format {FORMAT!r}")
    if config.get("version") != VERSION:
        raise ModelFolderError(
            f"{path} has another version of the format than this one, {VERSION}", got=config.get("version"),
            remedy="Use the version of bayesrule that wrote it.",
        )  # fmt: skip
    for kind in ENTRIES:
        if config.get("kind", "module") == kind:
            return kind, config
    raise ModelFolderError(f"{path} holds no known kind of model", got=repr(config["kind"])[:80])
