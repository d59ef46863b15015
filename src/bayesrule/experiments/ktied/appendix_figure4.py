"""Figure 4 of the appendix: heat maps of convolutions of ResNet-18, flattened to fan-in × fan-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import heat_maps
from bayesrule.experiments.ktied.claims import claim, fraction_of_first
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import presets
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "trained"
SETS = ("cifar-10",)
LAYERS = ("block_1_conv2", "block_3_conv2", "block_4_conv2")
METRICS = tuple(f"{layer}_relative_error" for layer in LAYERS)


def run(context: Context) -> list[Row]:
    """What is left of each matrix at each rank."""
    return heat_maps.rows(context, RUN, LAYERS)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """The heat maps."""
    return {name: heat_maps.figure(context, name, RUN, LAYERS) for name in context.datasets}


APPENDIX_FIGURE4 = Experiment(
    id="ktied/appendix-figure4",
    title="k-tied Normal, Appendix Figure 4: heat maps of convolutions of ResNet-18",
    presets=presets(SETS, heat_maps.RANKS, [RUN]),
    methods=heat_maps.RANKS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=tuple(
        claim(
            f"{metric.removesuffix('_relative_error')}: rank 2 leaves at most three quarters of rank 1's error",
            [("cifar-10", method, metric) for method in ("1-tied", "2-tied")], fraction_of_first(0.75),
        )
        for metric in METRICS
    ),
    published=published("appendix_figure4"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip
