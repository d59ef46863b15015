"""``bayesrule bench``: what a step costs, beside the point estimate and beside other libraries."""

from __future__ import annotations

import math
import re
import shlex
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bayesrule.cli.faults import faults_reported

if TYPE_CHECKING:
    from bayesrule.bench import Request

WIDTH = 100
"""Characters in a line of a list."""
EXAMPLE = "Example: bayesrule bench --models mlp-small --methods ktied --out costs"


def bench(
    preset: Annotated[str, typer.Option(help="quick (ten seconds), full (all models on a CPU) or gpu.")] = "quick",
    models: Annotated[
        str | None, typer.Option(metavar="A,B", help="mlp-small, mlp, lenet, lstm, transformer, dense-WIDTHxDEPTH.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B", help="In place of the preset's; --list shows all.")
    ] = None,
    batch: Annotated[str | None, typer.Option(metavar="N,M", help="Examples in a step.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    compiled: Annotated[
        str | None,
        typer.Option("--compile", metavar="MODES", help="eager, compiled, captured, compiled-captured: one or more."),
    ] = None,
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="Also under autocast to bfloat16.")] = None,
    rounds: Annotated[int | None, typer.Option(metavar="N", help="At most so many turns of each method.")] = None,
    seconds: Annotated[float | None, typer.Option(metavar="S", help="For each model, batch and mode.")] = None,
    inputs: Annotated[int | None, typer.Option(metavar="N", help="Of a prediction; 0 measures none.")] = None,
    draws: Annotated[int | None, typer.Option(metavar="N", help="Of a prediction.")] = None,
    threads: Annotated[int, typer.Option(metavar="N", help="Of a CPU.")] = 1,
    seed: Annotated[int, typer.Option(metavar="S", help="Of everything random.")] = 0,
    keep_memory: Annotated[
        bool, typer.Option("--keep-memory", help="No waiting for the system's memory: tells small differences (glibc).")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="For result.json, table and picture.")] = Path(
        "bayesrule-bench"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace a result that lies in --out.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List models, methods and what is installed.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure what training steps and predictions cost, and write result.json, a table and a picture.

    Our methods and those of the other libraries that are installed take turns on the same networks with the same
    optimizer; costs are ratios of medians to the point estimate's, with bootstrap intervals. On a GPU: bayesrule bench
    --preset gpu; bayesrule bench --list shows what can be measured here.
    """
    with faults_reported(debug):
        console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        if listed:
            list_contenders(console)
            return
        given = {
            "models": _words(models), "methods": _words(methods), "batches": _numbers(batch), "device": device,
            "modes": _words(compiled), "bf16": bf16, "rounds": rounds, "seconds": seconds, "inputs": inputs,
            "draws": draws, "seed": seed, "keep_memory": keep_memory,
        }  # fmt: skip
        _refuse_to_replace(out, force)
        run_bench(console, preset, {key: value for key, value in given.items() if value is not None}, out, threads)


def run_bench(console: Console, preset: str, given: dict[str, Any], out: Path, threads: int) -> None:
    """Measure, show the table, and say where everything was written."""
    import torch

    from bayesrule import bench as package
    from bayesrule.cli.outputs import require_writable
    from bayesrule.errors import InvalidArgument
    from bayesrule.train import TrainingInterrupted

    request = _request(preset, given)
    if threads < 1:
        raise InvalidArgument("--threads is 1 at least", got=threads)
    require_writable(out)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with _progress(console) as told, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the other libraries', about deprecations in theirs
            result = package.bench(request, f"bayesrule {shlex.join(sys.argv[1:])}", told)
    finally:
        torch.set_num_threads(threads_before)
    console.print(package.write_report(out, {**result, "preset": preset}), markup=False)
    console.print(f"\nWritten: {out}", markup=False)
    if "interrupted" in result:
        raise TrainingInterrupted(
            "Interrupted", got=f"{result['interrupted']}, which are written", remedy="Measure the others by themselves."
        )


def _refuse_to_replace(out: Path, force: bool) -> None:
    from bayesrule.bench.results import RESULT
    from bayesrule.errors import InvalidArgument

    if (out / RESULT).exists() and not force:
        raise InvalidArgument(
            "There is a result in the output folder", got=out / RESULT,
            remedy="Name another folder with --out, or replace the result with --force.",
        )  # fmt: skip


def list_contenders(console: Console) -> None:
    """Models, and methods with what they are; other libraries with why they are missing."""
    from bayesrule.bench import METHODS, MODELS, PEERS
    from bayesrule.text_table import aligned

    rows = [("model", name, "") for name in MODELS]
    rows += [("model", "dense-WIDTH, dense-WIDTHxDEPTH", "square dense layers of any other size")]
    rows += [("method", name, method.title) for name, method in METHODS.items()]
    absent = {name: reason for name, peer in PEERS.items() if (reason := peer.absent())}
    rows += [("peer", name, "missing, see below" if name in absent else "installed") for name in PEERS]
    missing = [_how_to_install(reason, PEERS[name].install) for name, reason in absent.items()]
    console.print("\n\n".join([aligned(("", "name", ""), *rows), *missing]), markup=False)


def _how_to_install(reason: str, command: str) -> str:
    """Why a library is missing, and the command below it, in lines that fit a screen and can be copied."""
    whole = textwrap.TextWrapper(WIDTH - 6, break_long_words=False, break_on_hyphens=False)
    return whole.fill(reason.removesuffix(command)) + "\n    " + " \\\n      ".join(whole.wrap(command))


def _request(preset: str, given: dict[str, Any]) -> Request:
    import torch

    from bayesrule.bench import PEERS, PRESETS
    from bayesrule.data.names import nearest
    from bayesrule.errors import InvalidArgument

    if preset not in PRESETS:
        remedy = f"{nearest(preset, PRESETS)}Use {', '.join(PRESETS)}."
        raise InvalidArgument("There is no such preset", got=preset, remedy=remedy)
    for name, least in (("rounds", 1), ("draws", 1), ("seconds", 0), ("inputs", 0), ("seed", 0)):
        if not given.get(name, least) >= least:  # nor is a NaN
            raise InvalidArgument(f"--{name} is {least} at least", got=given[name])
        if given.get(name) == math.inf:
            raise InvalidArgument(f"--{name} is finite", got=given[name])
    for name, value in given.items():
        if value == ():
            raise InvalidArgument(f"--{'compile' if name == 'modes' else name} names nothing", got="an empty list")
    named = given.get("methods", ())
    missing = {name: why for name in named if name in PEERS and (why := PEERS[name].absent())}
    if named and len(missing) == len(named):
        raise InvalidArgument(f"{', '.join(missing)} cannot be measured here", got="; ".join(missing.values()))
    request = replace(PRESETS[preset], **given)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", request.device):
        raise InvalidArgument("--device is cpu or cuda", got=request.device)
    if request.device != "cpu" and not torch.cuda.is_available():
        other = "--preset full" if preset == "gpu" else "--device cpu"
        raise InvalidArgument("There is no CUDA device here", got=request.device, remedy=f"Use {other}.")
    return request


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield lambda what, done, parts: console.print(f"{done} of {parts}: {what}", markup=False)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, parts: bar.update(task, description=what, completed=done, total=parts)


def _words(listed: str | None) -> tuple[str, ...] | None:
    return None if listed is None else tuple(dict.fromkeys(word.strip() for word in listed.split(",") if word.strip()))


def _numbers(listed: str | None) -> tuple[int, ...] | None:
    from bayesrule.errors import InvalidArgument

    words = _words(listed)
    if words is not None and not all(word.isdigit() and int(word) > 0 for word in words):
        raise InvalidArgument("--batch takes whole numbers from 1 on, as in 128,1024", got=listed)
    return None if words is None else tuple(map(int, words))
