"""Trained models shared between experiments: kept by configuration, trained once."""

from __future__ import annotations

import fcntl
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from bayesrule.data.files import cache_folder
from bayesrule.experiments.context import Context
from bayesrule.experiments.provenance import source_digest
from bayesrule.nn.model_folder import write_atomically

Record = dict[str, Any]
Model = TypeVar("Model", bound=nn.Module)
WEIGHTS, RECORD, SECONDS = "model.safetensors", "record.json", "compute_seconds"
APART = ("cli", "report", "experiments")
"""Packages whose source a training does not depend on, but for the file that trains."""


@dataclass(frozen=True)
class Trained(Generic[Model]):
    """A trained model, and what was recorded while it was trained: plain data."""

    bnn: Model
    record: Record


def trained(
    configuration: Mapping[str, Any],
    build: Callable[[], Model],
    train: Callable[[Model], Record],
    context: Context,
    told: str,
) -> Trained[Model]:
    """The model of a configuration: taken from the user's cache, or trained and kept there.

    A second process that asks for the same model meanwhile waits for it.

    Args:
        configuration: Everything the model depends on, as plain data.
        build: Makes the untrained model.
        train: Trains it in place and returns what to record.
        context: Of the run, on whose device it is trained; the model comes back there.
        told: What is trained, for the run's progress.
    """
    device, started = context.device, time.perf_counter()
    folder = cache_folder() / "trained" / _digest(configuration, train, device)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        bnn = build().to(device)
        record = _taken(folder, bnn, device)
        if record is None:
            context.progress(told)
            _keep(folder, bnn, {"configuration": dict(configuration), **_timed(train, bnn)})
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        elif folder.name not in context.effort.seconds:
            context.progress(f"{told}; kept from before")
    context.effort.model(folder.name, record[SECONDS], time.perf_counter() - started)
    return Trained(bnn, record)


def _timed(train: Callable[[Model], Record], bnn: Model) -> Record:
    started = time.perf_counter()
    return {**train(bnn), SECONDS: time.perf_counter() - started}


def _taken(folder: Path, bnn: nn.Module, device: torch.device) -> Record | None:
    """The record of a model that was kept, whose weights are loaded; None if there is none, or a file is damaged."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        weights = load_file(folder / WEIGHTS, device=str(device))
    except (OSError, ValueError, SafetensorError):
        return None
    bnn.load_state_dict(weights)
    return record


def _keep(folder: Path, bnn: nn.Module, record: Record) -> None:
    """The record last: where it is, the model is whole."""
    partial = folder / f"{WEIGHTS}.partial"
    save_file({name: tensor.contiguous().clone() for name, tensor in bnn.state_dict().items()}, partial)
    partial.replace(folder / WEIGHTS)
    write_atomically(folder / RECORD, json.dumps(record).encode())


def _digest(configuration: Mapping[str, Any], train: Callable[..., Any], device: torch.device) -> str:
    parts = [
        json.dumps(configuration, sort_keys=True),
        source_digest(APART),
        inspect.getsource(inspect.getmodule(train) or train),
        torch.__version__,
        device.type,
    ]
    return sha256("\n".join(parts).encode()).hexdigest()[:32]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
