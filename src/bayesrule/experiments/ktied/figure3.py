"""Figure 3: the variance explained by each singular value of posterior means and standard deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment
from bayesrule.experiments.ktied import spectrum_rows
from bayesrule.experiments.ktied.claims import at_least, at_most, claim
from bayesrule.experiments.ktied.drawing import draw_spectra
from bayesrule.experiments.ktied.low_rank import LAYERS
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import THREE, presets
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "converged"


def run(context: Context) -> list[Row]:
    """What one and two singular values explain, layer by layer."""
    return spectrum_rows.rows(context, RUN)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """One for each model."""
    return {name: draw_spectra(spectrum_rows.curves(context, name, RUN)) for name in context.datasets}


def _claims(dataset: str) -> tuple[Claim, ...]:
    tops = {part: [(dataset, part, f"{layer}_top1") for layer in LAYERS[dataset]] for part in spectrum_rows.PARTS}
    return (
        claim(
            f"{dataset}: the top singular value explains over 95 % of every matrix of standard deviations",
            tops["stds"], at_least(0.95),
        ),
        claim(f"{dataset}: and less than half of every matrix of means", tops["means"], at_most(0.5)),
    )  # fmt: skip


FIGURE3 = Experiment(
    id="ktied/figure3",
    title="k-tied Normal, Figure 3: spectra of posterior means and standard deviations",
    presets=presets(THREE, spectrum_rows.PARTS, [RUN]),
    methods=spectrum_rows.PARTS,
    datasets=lambda data: THREE,
    metrics=spectrum_rows.metrics,
    run=run,
    claims=tuple(stated for dataset in THREE for stated in _claims(dataset)),
    published=published("figure3"),
    devices=("cuda", "cpu"),
    figures=figures,
)
