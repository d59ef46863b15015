"""The `result.json` of a benchmark, in the form that `docs/make_results.py` reads."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bayesrule.experiments.provenance import commit, versions


def device_name(device: str) -> str:
    """Of what was measured on."""
    return torch.cuda.get_device_name() if device == "cuda" else f"cpu ({platform.machine()}), one thread"


def rows_of(dataset: str, method: str, n: int, values: Mapping[str, float], variant: str = "") -> list[dict[str, Any]]:
    """One for each metric."""
    named = {"dataset": dataset, "method": method, "variant": variant}
    return [{**named, "metric": metric, "value": value, "n": n} for metric, value in values.items()]


def write_result(
    folder: Path | None,
    experiment: str,
    options: str,
    device: str,
    seconds: float,
    rows: Sequence[Mapping[str, Any]],
    skipped: Iterable[str] = (),
) -> None:
    """Write it into the folder, if there is one."""
    if folder is None:
        return
    result = {
        "experiment": experiment,
        "command": f"python benchmarks/{experiment.replace('-', '_')}.py {options}",
        "commit": commit(),
        "versions": versions(()),
        "seed": 0,
        "device": device_name(device),
        "wall_seconds": round(seconds, 1),
        "rows": list(rows),
        "skipped": list(skipped),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
