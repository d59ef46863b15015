"""``bayesrule fit``: from a table to a model folder with its report."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bayesrule.cli import options
from bayesrule.cli.curves import also_to_tensorboard
from bayesrule.cli.display import OnProgress, live
from bayesrule.cli.outputs import CHECKPOINTS, REPORT, Standing, new_model_folder, standing
from bayesrule.cli.page import make_report
from bayesrule.cli.passes import steps_of
from bayesrule.cli.results import methods_table
from bayesrule.cli.rivals import networks, rival_methods, rival_settings
from bayesrule.cli.sources import Source, Task, load_source
from bayesrule.data import recognise_target, separate_target
from bayesrule.errors import InvalidArgument
from bayesrule.posteriors import KTied
from bayesrule.report import Method, write_report
from bayesrule.report.comparison import CLASSIFICATION, REGRESSION
from bayesrule.report.numbers import plural
from bayesrule.train import TrainingInterrupted
from bayesrule.train.members import Settings
from bayesrule.train.tabular import TableFit, TabularModel, fit_table


@dataclass(frozen=True)
class FitRequest:
    """What was asked for, as it was written on the command line."""

    data: str | None = None
    target: str | None = None
    task: Task | None = None
    posterior: str = "ktied:2"
    prior: str = "group-ard:row"
    estimator: str = "local"
    hidden: str = "64,64"
    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    out: Path | None = None
    resume: bool = False
    force: bool = False
    ensemble: int | None = None
    test_fraction: float = 0.2

    def settings(self) -> Settings:
        """Checked before any data is read."""
        options.at_least(1, "--epochs", self.epochs)
        options.at_least(1, "--steps", self.steps)
        options.at_least(2, "--ensemble", self.ensemble)
        options.at_least(0, "--seed", self.seed)
        if self.epochs is not None and self.steps is not None:
            raise InvalidArgument(
                "Training has one length", got=f"--epochs {self.epochs} and --steps {self.steps}",
                remedy="Give either of them.",
            )  # fmt: skip
        if not 0 <= self.test_fraction < 1:
            raise InvalidArgument(
                "--test-fraction must be at least 0 and below 1", got=self.test_fraction, remedy="0.2 is usual."
            )
        widths, family = options.widths(self.hidden), options.posterior(self.posterior)
        if isinstance(family, KTied) and family.rank > max(widths):
            raise InvalidArgument(
                f"The rank is too large: hidden layers of {self.hidden} have weights of rank {max(widths)} at most",
                got=f"--posterior {self.posterior}", remedy="Use a smaller rank (2 or 3 are usual), or diagonal.",
            )  # fmt: skip
        return Settings(
            hidden=widths,
            posterior=family,
            prior=options.prior(self.prior),
            estimator=options.estimator(self.estimator, family),
            steps=self.steps,
        )


def fit_model(console: Console, request: FitRequest) -> None:
    """Train, measure, compare, and write the folder."""
    settings = request.settings()
    source = load_source(request.data, request.target, request.task)
    out = request.out or Path(f"bayesrule-{source.name}")
    if request.resume and not request.force and _nothing_to_resume(console, out):
        return
    rows = _say_what_was_recognised(console, source)
    if request.epochs is not None:
        kept = round(rows * (1 - request.test_fraction))
        settings = replace(settings, steps=steps_of(request.epochs, kept, settings))
    with new_model_folder(out, resume=request.resume, force=request.force):
        training = _Training(console, source, request, out)
        model, fit = training.model(settings)
        methods = training.methods(settings, model, fit)
        if methods:
            command = command_line()
            write_report(make_report(source, model, fit, methods, folder=out, command=command), out / REPORT)
        model.info.update(data=source.name, metrics=_flat(model, fit, methods))
        model.save(out)
    _say_results(console, out, fit, methods)


def command_line() -> str:
    """How this program was called."""
    return shlex.join(["bayesrule", *sys.argv[1:]])


def _nothing_to_resume(console: Console, out: Path) -> bool:
    found = standing(out)
    if found is Standing.FINISHED:
        console.print(f"The model in {out} is finished: there is nothing to resume.")
    elif found is not Standing.STARTED:
        console.print(f"There is nothing to resume in {out}: starting from the beginning.")
    return found is Standing.FINISHED


def _say_what_was_recognised(console: Console, source: Source) -> int:
    """Before training starts; gives the number of rows with a target."""
    features, target, _ = separate_target(source.frame, source.target)
    task, reason = (source.task, "it was asked for") if source.task else recognise_target(target)
    said = f" ({source.note})" if source.note else ""
    console.print(f"Data: {source.name}, {plural(len(features), 'row')}, {plural(features.shape[1], 'feature column')}")
    console.print(f"Target: {source.target}{said}")
    console.print(f"Task: {task}, because {reason}")
    return len(features)


@dataclass(frozen=True)
class _Training:
    """What both fits have in common: ours, and that of the point estimates."""

    console: Console
    source: Source
    request: FitRequest
    out: Path

    def model(self, settings: Settings) -> tuple[TabularModel, TableFit]:
        with live(self.console, "Training") as show, also_to_tensorboard(show, self.out) as tell:
            model, fit = self._fit(settings, self.out / CHECKPOINTS, tell)
        misfits = {f"{row.name}: {row.note}." for row in networks(model)[0].conversion if row.note}
        for note in (*fit.notes, *sorted(misfits)):
            self.console.print(note)
        return model, fit

    def methods(self, settings: Settings, model: TabularModel, fit: TableFit) -> list[Method]:
        """The model and its rivals on the test rows; nothing where there are none."""
        if not len(fit.test_frame):
            return []
        ensemble = self.request.ensemble or 1
        with live(self.console, "Point estimates") as show:
            points, its_fit = self._fit(rival_settings(settings, ensemble), self.out / CHECKPOINTS / "points", show)
        ours = Method("Bayesian", fit.metrics, model.info["parameters"], fit.seconds, ours=True)
        return [ours, *rival_methods(points, its_fit, ensemble)]

    def _fit(self, settings: Settings, checkpoints: Path, tell: OnProgress) -> tuple[TabularModel, TableFit]:
        try:
            return fit_table(
                self.source.frame, self.source.target, task=self.source.task, settings=settings,
                test_fraction=self.request.test_fraction, seed=self.request.seed, out=checkpoints,
                resume=self.request.resume, on_progress=tell,
            )  # fmt: skip
        except TrainingInterrupted as error:
            command = command_line()
            again = command if self.request.resume else f"{command} --resume"
            raise TrainingInterrupted(
                error.what, got=error.got, remedy=f"The state of training is saved. Go on with: {again}"
            ) from error


def _flat(model: TabularModel, fit: TableFit, methods: list[Method]) -> dict[str, float]:
    """What ``metrics.json`` holds: ours by their own names, those of the rivals with the rival's name before them."""
    rival = {
        f"{method.name.lower().replace(' ', '_')}_{key}": value
        for method in methods
        if not method.ours
        for key, value in method.metrics.items()
    }
    return {**fit.metrics, "parameters": model.info["parameters"], "seconds": fit.seconds, **rival}


def _say_results(console: Console, out: Path, fit: TableFit, methods: list[Method]) -> None:
    if methods:
        columns = CLASSIFICATION if fit.task == "classification" else REGRESSION
        title = f"On {plural(len(fit.test_frame), 'test row')}"
        console.print(methods_table(methods, columns, title=title))
        console.print("The point estimates were trained together; their time is that of all.", style="dim")
        console.print(f"Model and report: {out}, {out / REPORT}")
    else:
        console.print(f"No rows were kept back to test on, so there is no table and no report. Model: {out}")
