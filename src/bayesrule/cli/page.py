"""From a fitted table to the content of its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from bayesrule.cli.passes import steps_per_pass
from bayesrule.cli.rivals import networks
from bayesrule.cli.sources import Source
from bayesrule.data import ClassTarget
from bayesrule.nn import BayesianModule
from bayesrule.report import (
    Classification,
    EpochPoint,
    FeatureRows,
    Images,
    Method,
    Provenance,
    Regression,
    Report,
    Table,
    Usage,
)
from bayesrule.report.numbers import plural
from bayesrule.train.tabular import TableFit, TabularModel

MOST_ROWS = 4000
"""Test rows that are drawn; measures are of all."""
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))
PYTHON = """import bayesrule as br
from bayesrule.data import read_table

model = br.load({folder!r})
predictions, noticed = model.predict_frame(read_table("new.csv", kinds=model.encoder.kinds))"""


def make_report(
    source: Source, model: TabularModel, fit: TableFit, methods: Sequence[Method], *, folder: Path, command: str
) -> Report:
    """Everything on the page."""
    # The member with the largest share stands for all.
    member = networks(model)[int(model.members.shares.argmax())]
    return Report(
        title=f"{source.target}: a Bayesian {'classifier' if fit.task == 'classification' else 'regression'}",
        data_name=source.name,
        sizes={"training": len(fit.train_frame), "test": len(fit.test_frame)},
        predictions=_predictions(model, fit),
        metrics=fit.metrics,
        methods=methods,
        history=_history(model, fit),
        inputs=_inputs(source, model, fit),
        posterior_stds={
            name: posterior.stddev.detach().double().numpy()
            for name, posterior in member.posteriors().items()
            if posterior.event_dim == 2
        },
        conversion=_conversion(member),
        notes=_notes(model, fit),
        usage=Usage(
            PYTHON.format(folder=folder.name),
            [f"bayesrule predict {folder.name} new.csv -o predictions.csv"],
        ),
        provenance=Provenance(command, model.members.settings.seed, model.info.get("versions", {})),
    )


def _predictions(model: TabularModel, fit: TableFit) -> Classification | Regression:
    predictive = model.predictive(fit.test_frame.iloc[:MOST_ROWS])
    targets = fit.test_targets.iloc[:MOST_ROWS]
    target = model.target
    if isinstance(target, ClassTarget):
        return Classification(
            predictive.probs.double().numpy(), target.encode(targets), target.classes,
            predictive.mutual_information.double().numpy(),
        )  # fmt: skip
    quantiles = predictive.quantile(torch.tensor(LEVELS))
    return Regression(
        mean=target.decode(predictive.mean.squeeze(-1).numpy()),
        epistemic_std=target.std * predictive.epistemic_std.squeeze(-1).double().numpy(),
        aleatoric_std=target.std * predictive.aleatoric_std.squeeze(-1).double().numpy(),
        quantile_levels=LEVELS,
        quantiles=target.decode(quantiles.squeeze(-1).numpy()),
        targets=targets.to_numpy(dtype="float64"),
        target_name=target.name,
    )


def _history(model: TabularModel, fit: TableFit) -> list[EpochPoint]:
    length = steps_per_pass(len(fit.train_frame), model.members.settings)
    return [
        EpochPoint(max(1, round(point["step"] / length)), point["nll"], point["kl_per_example"],
                   valid_nll=point["valid_nll"])
        for point in fit.history
    ]  # fmt: skip


def _inputs(source: Source, model: TabularModel, fit: TableFit) -> Images | FeatureRows:
    shown = fit.test_frame.iloc[:MOST_ROWS]
    if source.image is not None:
        return Images(shown.to_numpy(dtype="float64").reshape(-1, *source.image))
    names = [column.name for column in model.encoder.columns]
    return FeatureRows(names, shown[names].to_numpy(dtype=object))


def _conversion(member: BayesianModule) -> Table:
    rows = [
        (row.name, " × ".join(map(str, row.shape)), row.posterior, row.prior, f"{row.numbers:,}", row.note)
        for row in member.conversion
    ]
    return Table(("Parameter", "Shape", "Posterior", "Prior", "Numbers", "Note"), rows)


def _notes(model: TabularModel, fit: TableFit) -> list[str]:
    size, folds = len(model.members.members), model.members.settings.folds
    said = [
        f"{fit.task.capitalize()}, because {fit.reason}.",
        f"The model is {plural(size, 'network')}. Each was trained without one {folds}th of the training rows, which "
        "stopped and calibrated it; a network and its posterior below are one of them.",
        *fit.notes,
    ]
    if len(fit.test_frame) > MOST_ROWS:
        said.append(f"Pictures and words are of the first {MOST_ROWS:,} test rows, numbers in the tables of all.")
    return said
