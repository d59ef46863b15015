"""The `result.json` of a benchmark, in the form that the results page is made from."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bayesrule.experiments.provenance import commit, versions
from bayesrule.nn.model_folder import write_atomically

RESULT = "result.json"
Row = dict[str, Any]


def device_name(device: str) -> str:
    """Of what was measured on."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"cpu ({platform.machine()}), {'one thread' if threads == 1 else f'{threads} threads'}"


def rows_of(dataset: str, method: str, n: int, values: Mapping[str, float], variant: str = "") -> list[Row]:
    """One for each metric."""
    named = {"dataset": dataset, "method": method, "variant": variant}
    return [{**named, "metric": metric, "value": value, "n": n} for metric, value in values.items()]


def result_of(
    experiment: str,
    command: str,
    device: str,
    seconds: float,
    rows: Sequence[Mapping[str, Any]],
    skipped: Iterable[str] = (),
    *,
    seed: int = 0,
    packages: Iterable[str] = (),
) -> dict[str, Any]:
    """Everything that is kept of a run."""
    return {
        "experiment": experiment,
        "command": command,
        "commit": commit(),
        "versions": versions(packages),
        "seed": seed,
        "device": device_name(device),
        "wall_seconds": round(seconds, 1),
        "rows": list(rows),
        "skipped": list(skipped),
    }


def write_result(folder: Path, result: Mapping[str, Any]) -> Path:
    """Write it whole, or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RESULT
    write_atomically(path, (json.dumps(result, indent=2, ensure_ascii=False) + "\n").encode())
    return path
