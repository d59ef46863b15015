"""Figure 4: heat maps of the standard deviations of LeNet's first dense layer, and of their low-rank approximations."""

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

RUN, LAYER = "converged", "dense_1"
SETS = ("cifar-100",)
METRICS = (f"{LAYER}_relative_error",)


def run(context: Context) -> list[Row]:
    """What is left of the matrix at each rank."""
    return heat_maps.rows(context, RUN, [LAYER])


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """The heat maps."""
    return {name: heat_maps.figure(context, name, RUN, [LAYER]) for name in context.datasets}


FIGURE4 = Experiment(
    id="ktied/figure4",
    title="k-tied Normal, Figure 4: heat maps of LeNet's first dense layer",
    presets=presets(SETS, heat_maps.RANKS, [RUN]),
    methods=heat_maps.RANKS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        claim(
            "rank 2 leaves at most three quarters of rank 1's error",
            [("cifar-100", method, METRICS[0]) for method in ("1-tied", "2-tied")], fraction_of_first(0.75),
        ),
    ),
    published=published("figure4"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip
