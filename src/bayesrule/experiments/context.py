"""What a run is given, and the finished cells it keeps so that it can be stopped and resumed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from bayesrule.experiments.effort import Effort
from bayesrule.experiments.experiment import Preset
from bayesrule.nn.model_folder import write_atomically

CELLS = "cells"


@dataclass
class Context:
    """Everything a run may depend on.

    Attributes:
        preset: Its settings.
        datasets: To measure on.
        methods: To measure.
        data: Folder with data files, looked in first.
        out: Folder of the result.
        device: To compute on.
        seed: Of everything random.
        identity: What cells are kept under: cells of another experiment, preset, seed or source are not taken.
        progress: Told, a line at a time, how it goes.
        skipped: What was left out, and why; the run adds to it.
        seconds_before: That cells taken over from an earlier run took.
        effort: What cells and trained models took to compute, whenever that was.
    """

    preset: Preset
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    data: Path | None
    out: Path
    device: torch.device
    seed: int
    identity: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[str], None] = lambda line: None
    skipped: list[str] = field(default_factory=list)
    seconds_before: float = 0.0
    effort: Effort = field(default_factory=Effort)

    def cell(self, *key: str | int, compute: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """The numbers of one cell: kept from before, or computed and kept."""
        path, identity = self._path(key), {**self.identity, "key": list(key)}
        told = " ".join(map(str, key))
        kept = _read(path, identity)
        if kept is not None:
            if path.stem not in self.effort.seconds:
                self.seconds_before += kept["wall_seconds"]
                self.progress(f"{told}: kept from before")
            self.effort.seconds |= kept["computed"]
            return kept["values"]
        started = time.perf_counter()
        with self.effort.cell(path.stem) as computed:
            values = {name: float(value) for name, value in compute().items()}
        seconds = time.perf_counter() - started
        content = {"identity": identity, "wall_seconds": seconds, "computed": computed, "values": values}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())
        self.progress(f"{told}: {seconds:.1f} s")
        return values

    def _path(self, key: tuple[str | int, ...]) -> Path:
        """A readable name; the digest keeps names apart that read alike."""
        words = "_".join(re.sub(r"[^\w.-]", "-", str(part)) for part in key)
        return self.out / CELLS / f"{words[:80]}-{sha256(json.dumps(key).encode()).hexdigest()[:8]}.json"


def _read(path: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """A whole cell of the same identity; anything else is computed again."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        fits = stored["identity"] == identity and all(isinstance(stored[part], dict) for part in ("computed", "values"))
        return stored if fits and isinstance(stored["wall_seconds"], float) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
