"""``bayesrule reproduce``: the experiments, each measured by one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bayesrule.cli.faults import faults_reported
from bayesrule.text_table import aligned

if TYPE_CHECKING:
    from bayesrule.experiments import PresetName


def reproduce(
    experiment: Annotated[
        str | None, typer.Argument(metavar="ID", help="Which experiment, or with --list a group.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the experiments, or those of a group: mn --list.")
    ] = False,
    preset: Annotated[str, typer.Option(help="smoke (synthetic data, a minute), quick (ten) or paper.")] = "quick",
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder with data files.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="By default bayesrule-ID-PRESET.")] = None,
    datasets: Annotated[str | None, typer.Option(metavar="A,B", help="In place of the preset's.")] = None,
    methods: Annotated[str | None, typer.Option(metavar="A,B", help="In place of the preset's.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0; by default the experiment's.")] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure a table or figure again, and write result.json and its table.

    Ctrl-C keeps what is finished; the same command goes on from there.
    """
    with faults_reported(debug):
        console = Console(quiet=quiet, highlight=False, soft_wrap=True)
        if listed:
            list_experiments(console, experiment)
        else:
            reproduce_experiment(
                console, experiment, preset, data=data, out=out, datasets=datasets, methods=methods, device=device,
                seed=seed,
            )  # fmt: skip


def list_experiments(console: Console, group: str | None = None) -> None:
    """Ids and titles, of all or of a group such as ``mn``."""
    from bayesrule.experiments import EXPERIMENTS, beginning, experiment

    ids = EXPERIMENTS if group is None else beginning(group) or [experiment(group).id]
    console.print(aligned(("id", "title"), *((name, EXPERIMENTS[name].title) for name in ids)), markup=False)


def reproduce_experiment(
    console: Console,
    name: str | None,
    preset: str,
    *,
    data: Path | None = None,
    out: Path | None = None,
    datasets: str | None = None,
    methods: str | None = None,
    device: str | None = None,
    seed: int = 0,
) -> None:
    """Run an experiment, or go on with it, and show its table."""
    from bayesrule import experiments
    from bayesrule.errors import InvalidArgument
    from bayesrule.experiments.running import RESULT, TEXT
    from bayesrule.train import TrainingInterrupted

    if name is None:
        raise InvalidArgument("No experiment is named", remedy="bayesrule reproduce --list lists them.")
    chosen = experiments.experiment(name)
    request = experiments.Request(
        _preset(preset), out or Path(f"bayesrule-{name.replace('/', '-')}-{preset}"), data, _names(datasets),
        _names(methods), device, seed,
    )  # fmt: skip
    try:
        experiments.reproduce(chosen, request, lambda line: console.print(line, markup=False))
    except KeyboardInterrupt as interrupted:
        raise TrainingInterrupted(
            "Interrupted", got=f"the finished cells are kept in {request.out}", remedy="The same command goes on."
        ) from interrupted
    console.print((request.out / TEXT).read_text(encoding="utf-8"), markup=False)
    console.print(f"Written: {request.out / RESULT}", markup=False)


def _preset(name: str) -> PresetName:
    from bayesrule.data.names import nearest
    from bayesrule.errors import InvalidArgument
    from bayesrule.experiments import PRESETS

    for known in PRESETS:
        if name == known:
            return known
    remedy = f"{nearest(name, PRESETS)}Use {', '.join(PRESETS)}."
    raise InvalidArgument("There is no such preset", got=name, remedy=remedy)


def _names(listed: str | None) -> tuple[str, ...] | None:
    """Names from ``a,b``."""
    return None if listed is None else tuple(name.strip() for name in listed.split(",") if name.strip())
