"""The commands and their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import bayesrule
from bayesrule.cli.bench_command import EXAMPLE, bench
from bayesrule.cli.faults import faults_reported
from bayesrule.cli.options import ESTIMATORS, POSTERIORS, PRIORS, forms
from bayesrule.cli.reproduce_command import reproduce

app = typer.Typer(
    name="bayesrule",
    help="Bayesian deep learning with structured posteriors: from a table to a calibrated model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder written by bayesrule fit.", show_default=False)]


class TaskName(StrEnum):
    """What a target poses."""

    classification = "classification"
    regression = "regression"


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"bayesrule {bayesrule.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def bayesrule_command(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Bayesian deep learning with structured posteriors: from a table to a calibrated model."""


@app.command(epilog="Example: bayesrule fit wine --steps 100 --out my-wine")
def fit(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA", help="digits (the default), diabetes, breast-cancer, wine, or a CSV or parquet file."
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="COL", help="Column to predict; by default the last.")] = None,
    task: Annotated[TaskName | None, typer.Option(help="What it poses; by default recognised.")] = None,
    posterior: Annotated[str, typer.Option(help=f"Of the weights: {forms(POSTERIORS)}.")] = "ktied:2",
    prior: Annotated[str, typer.Option(help=f"Of the weights: {forms(PRIORS)}.")] = "group-ard:row",
    estimator: Annotated[str, typer.Option(help=f"How noise enters training: {forms(ESTIMATORS)}.")] = "local",
    hidden: Annotated[str, typer.Option(metavar="WIDTHS", help="Widths of the hidden layers.")] = "64,64",
    epochs: Annotated[int | None, typer.Option(metavar="N", help="Passes over the training rows.")] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Training steps; by default as many as the data need.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="Of the split and of training.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="DIR", help="Model folder; by default bayesrule-DATA.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")] = False,
    ensemble: Annotated[
        int | None, typer.Option(metavar="N", help="Compare with a deep ensemble of N networks.")
    ] = None,
    test_fraction: Annotated[float, typer.Option(metavar="F", help="Rows kept back to test on.")] = 0.2,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train a calibrated model on a table, and write a folder with the model and a report.

    Ctrl-C saves the state of training; the same command with --resume goes on from there.
    """
    with faults_reported(debug):
        from bayesrule.cli.fit_command import FitRequest, fit_model
        from bayesrule.distributed import restarted

        request = FitRequest(
            data, target, task.value if task else None, posterior, prior, estimator, hidden, epochs, steps, seed, out,
            resume or restarted(), force and not restarted(), ensemble, test_fraction,
        )  # fmt: skip
        fit_model(_console(quiet), request)


@app.command(epilog="Example: bayesrule predict my-wine new.csv -o predictions.csv")
def predict(
    model: Model,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A CSV or parquet file.", show_default=False)],
    output: Annotated[Path, typer.Option("--out", "-o", metavar="CSV", help="Where predictions go.")],
    rows: Annotated[int, typer.Option(metavar="N", help="Rows in memory at a time.")] = 2000,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict every row of a file, in constant memory.

    For a number: mean, standard deviations, 5, 50 and 95 % quantiles. For classes: probabilities, entropy and mutual
    information.
    """
    with faults_reported(debug):
        from bayesrule.cli.predict_command import predict_file

        predict_file(_console(quiet), model, data, output, rows=rows, force=force)


@app.command(epilog="Example: bayesrule compress my-wine --rank 1 -o small-wine --data wine")
def compress(
    model: Model,
    rank: Annotated[int, typer.Option(metavar="K", help="Of every weight's standard deviations.")],
    output: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new model folder.")],
    data: Annotated[str | None, typer.Option(metavar="DATA", help="Measure both models on these rows.")] = None,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a smaller model whose weights' standard deviations have low rank, and what that saves and costs."""
    with faults_reported(debug):
        from bayesrule.cli.compress_command import compress_model

        compress_model(_console(quiet), model, output, rank=rank, data=data, force=force)


@app.command(epilog="Example: bayesrule prune my-wine --threshold 2 -o pruned-wine --data wine")
def prune(
    model: Model,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The new model folder.")],
    threshold: Annotated[
        float | None, typer.Option(metavar="T", help="Of log(variance/mean²); weights above it go. By default 3.")
    ] = None,
    target_sparsity: Annotated[
        float | None, typer.Option(metavar="S", help="Instead, the share of weights that go, the noisiest first.")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Also write model.onnx, at the posterior mean.")] = False,
    data: Annotated[str | None, typer.Option(metavar="DATA", help="Measure both models on these rows.")] = None,
    force: Force = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a smaller model without the weights that are noise, and what that saves and costs.

    Hidden units that nothing reads any more, or that have become constant, are cut; what is left keeps its posterior.
    """
    with faults_reported(debug):
        from bayesrule.cli.prune_command import prune_model

        prune_model(
            _console(quiet), model, output, threshold=threshold, target_sparsity=target_sparsity, onnx=onnx,
            data=data, force=force,
        )  # fmt: skip


app.command(epilog="Example: bayesrule reproduce tabular --preset smoke --out trial")(reproduce)
app.command(epilog=EXAMPLE)(bench)


def _console(quiet: bool) -> Console:
    return Console(quiet=quiet, highlight=False, soft_wrap=True)
