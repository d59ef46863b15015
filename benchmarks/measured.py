"""What the scripts here write: the `result.json` of `bayesrule.bench`, with the command that made it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesrule.bench import results
from bayesrule.bench.results import result_of, rows_of

__all__ = ["rows_of", "write_result"]


def write_result(
    folder: Path | None,
    experiment: str,
    options: str,
    device: str,
    seconds: float,
    rows: Sequence[Mapping[str, Any]],
    skipped: Iterable[str] = (),
    claims: Sequence[Mapping[str, str]] = (),
) -> None:
    """Write it into the folder, if there is one."""
    if folder is not None:
        command = f"python benchmarks/{experiment.replace('-', '_')}.py {options}"
        result = result_of(experiment, command, device, seconds, rows, skipped)
        results.write_result(folder, {**result, "claims": list(claims)} if claims else result)
