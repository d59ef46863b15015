"""Figure 5 of the appendix: spectra of the convolutions of ResNet-18."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import spectrum_rows
from bayesrule.experiments.ktied.claims import at_least, claim, increasing
from bayesrule.experiments.ktied.drawing import draw_spectra
from bayesrule.experiments.ktied.low_rank import LAYERS
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import presets
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "trained"
SETS = ("cifar-10",)
CONVOLUTIONS = [layer for layer in LAYERS["cifar-10"] if layer.endswith(("conv1", "conv2"))]


def run(context: Context) -> list[Row]:
    """What one and two singular values explain, layer by layer."""
    return spectrum_rows.rows(context, RUN)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """A panel for each 3×3 convolution."""
    return {name: draw_spectra(spectrum_rows.curves(context, name, RUN, CONVOLUTIONS)) for name in context.datasets}


APPENDIX_FIGURE5 = Experiment(
    id="ktied/appendix-figure5",
    title="k-tied Normal, Appendix Figure 5: spectra of the convolutions of ResNet-18",
    presets=presets(SETS, spectrum_rows.PARTS, [RUN]),
    methods=spectrum_rows.PARTS,
    datasets=lambda data: SETS,
    metrics=spectrum_rows.metrics,
    run=run,
    claims=(
        claim(
            "two singular values explain over 95 % of the standard deviations of every 3×3 convolution",
            [("cifar-10", "stds", f"{layer}_top2") for layer in CONVOLUTIONS], at_least(0.95),
        ),
        claim(
            "one explains more of the last block's standard deviations than of the first's",
            [("cifar-10", "stds", f"block_{block}_conv2_top1") for block in (1, 4)], increasing,
        ),
    ),
    published=published("appendix_figure5"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip
