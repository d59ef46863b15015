"""Running an experiment: rows, verdicts, and the files of its result."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bayesrule.data.config import BadConfig, entry
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.context import CELLS, Context
from bayesrule.experiments.experiment import Claim, Experiment, PresetName, Verdict
from bayesrule.experiments.provenance import commit, source_digest, versions
from bayesrule.experiments.rendering import markdown_result, text_result
from bayesrule.experiments.rows import Row, with_published
from bayesrule.nn.model_folder import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULT, TEXT, MARKDOWN = "result.json", "table.txt", "table.md"


@dataclass(frozen=True)
class Request:
    """What was asked for; the fields are the options of ``bayesrule reproduce``."""

    preset: PresetName
    out: Path
    data: Path | None = None
    datasets: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    device: str | None = None
    seed: int = 0

    def command(self, experiment: str) -> str:
        """The command that asks for it, with paths relative to the present folder: a result belongs to no machine."""
        words = ["bayesrule", "reproduce", experiment, "--preset", self.preset]
        options = {
            "--data": None if self.data is None else os.path.relpath(self.data),
            "--out": os.path.relpath(self.out),
            "--datasets": None if self.datasets is None else ",".join(self.datasets),
            "--methods": None if self.methods is None else ",".join(self.methods),
            "--device": self.device,
            "--seed": str(self.seed),
        }
        return shlex.join(words + [word for name, value in options.items() if value for word in (name, value)])


def reproduce(
    experiment: Experiment, request: Request, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Run an experiment, or go on with it, and write ``result.json`` and its tables into the folder asked for."""
    context = context_of(experiment, request, progress)
    preset, device = context.preset, context.device
    started = time.perf_counter()
    rows = with_published(experiment.run(context), experiment.published)
    elapsed = time.perf_counter() - started
    synthetic = preset.synthetic and not experiment.drawn
    result = {
        "experiment": experiment.id,
        "preset": request.preset,
        "command": request.command(experiment.id),
        "commit": commit(),
        "versions": versions(experiment.packages),
        "seed": request.seed,
        "device": _device_name(device),
        "wall_seconds": round(elapsed + context.seconds_before, 1),
        "rows": [_plain(row) for row in rows],
        "compute_seconds": round(sum(context.effort.seconds.values()) or elapsed, 1),
        "synthetic": synthetic,
        "skipped": context.skipped,
        "claims": [_judged(claim, rows, synthetic) for claim in experiment.claims],
    }
    _write(request.out, result, experiment.title)
    if experiment.figures is not None:
        _draw(request.out, experiment.figures(context, rows))
    return result


def context_of(
    experiment: Experiment, request: Request, progress: Callable[[str], None] = lambda line: None
) -> Context:
    """What the run is given; refused where it cannot be run."""
    datasets, methods = experiment.select(request.preset, request.data, request.datasets, request.methods)
    device = _device(experiment, request.device)
    if request.data is not None and not request.data.is_dir():
        raise InvalidArgument(f"There is no data folder {request.data}", remedy="Give --data the folder data lie in.")
    _check_folder(request.out, experiment.id, request.preset)
    preset = experiment.presets[request.preset]
    if preset.synthetic and request.data is not None:
        progress(f"--data is not read: the preset {request.preset} makes up its data")
    identity = {
        "experiment": experiment.id, "preset": request.preset, "seed": request.seed, "device": device.type,
        "settings": json.loads(json.dumps(dict(preset.settings))), "source": source_digest(),
    }  # fmt: skip
    return Context(preset, datasets, methods, request.data, request.out, device, request.seed, identity, progress)


def _draw(folder: Path, figures: Mapping[str, Figure]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight", metadata={"Software": None})


def _judged(claim: Claim, rows: Sequence[Row], synthetic: bool) -> dict[str, str]:
    verdict = Verdict("not measured", "the data are synthetic") if synthetic else claim.check(rows)
    return {"claim": claim.name, **asdict(verdict)}


def _plain(row: Row) -> dict[str, Any]:
    """For JSON, which has no NaN and no infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in asdict(row).items()
    }


def _device(experiment: Experiment, asked: str | None) -> torch.device:
    if asked is None:
        usable = [kind for kind in experiment.devices if kind != "cuda" or torch.cuda.is_available()]
        return torch.device(usable[0] if usable else experiment.devices[0])
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise InvalidArgument("There is no such device", got=asked, remedy="Use cpu, cuda or cuda:0.") from error
    if device.type not in experiment.devices:
        raise InvalidArgument(
            f"{experiment.id} runs on {' or '.join(experiment.devices)}", got=asked, remedy="Leave --device out."
        )
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidArgument("There is no CUDA device here", got=asked, remedy="Use --device cpu.")
    return device


def _device_name(device: torch.device) -> str:
    return device.type if device.type == "cpu" else torch.cuda.get_device_name(device)


def _check_folder(folder: Path, experiment: str, preset: str) -> None:
    """Refuse to replace the result of something else."""
    if folder.exists() and not folder.is_dir():
        raise InvalidArgument(f"{folder} is not a folder", got="a file of that name", remedy="Give --out another name.")
    try:
        stored = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        held = f"{entry(stored, 'experiment')}, preset {stored.get('preset')}"
    except FileNotFoundError:
        return
    except (ValueError, BadConfig):
        held = "a file that is no result"
    if held != f"{experiment}, preset {preset}":
        raise InvalidArgument(
            f"{folder / RESULT} is the result of something else", got=held, remedy="Give --out another folder."
        )


def _write(folder: Path, result: dict[str, Any], title: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        TEXT: text_result(result, title),
        MARKDOWN: markdown_result(result, title),
        RESULT: json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False),
    }
    for name, text in files.items():
        write_atomically(folder / name, (text + "\n").encode())


__all__ = ["CELLS", "MARKDOWN", "RESULT", "TEXT", "Request", "context_of", "reproduce"]
