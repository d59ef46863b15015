"""Figure 7: convergence of the −ELBO on validation data, three models, without annealing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import convergence, settings
from bayesrule.experiments.ktied.claims import claim, increasing
from bayesrule.experiments.ktied.drawing import draw_curves
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import POSTERIORS, THREE, presets
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = convergence.RUN
METRICS = ("negative_elbo_end", "negative_elbo_over_curve")


def run(context: Context) -> list[Row]:
    """The end of each curve and its mean; over seeds."""
    rows = []
    for dataset in context.datasets:
        for method, curves in convergence.curves(context, dataset).items():
            variant = settings.stated(settings.recipe(context, dataset, RUN, method, context.seed))
            values = {
                "negative_elbo_end": [curve[max(curve)] for curve in curves],
                "negative_elbo_over_curve": [fmean(curve.values()) for curve in curves],
            }
            rows += [
                Row.over(found, dataset=dataset, method=method, variant=variant, metric=metric)
                for metric, found in values.items()
            ]
    return rows


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """A panel for each model."""
    found = {name: convergence.curves(context, name) for name in context.datasets}
    return {"curves": draw_curves(found, x="step", y="−ELBO per validation example", logarithmic=True)}


def _gain(dataset: str) -> list[tuple[str, str, str]]:
    return [(dataset, method, "negative_elbo_over_curve") for method in ("2-tied", "mean-field")]


def _smaller_gain(*values: float) -> tuple[bool, str]:
    gains = [1 - tied / free for tied, free in zip(values[::2], values[1::2], strict=True)]
    return gains[1] < min(gains[0], gains[2]), ", ".join(f"{gain:.1%}" for gain in gains)


FIGURE7 = Experiment(
    id="ktied/figure7",
    title="k-tied Normal, Figure 7: convergence curves of three models",
    presets=presets(THREE, POSTERIORS, [RUN], quick_methods=("mean-field", "2-tied")),
    methods=POSTERIORS,
    datasets=lambda data: THREE,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        claim("mnist: 2-tied lies below mean-field over the curve", _gain("mnist"), increasing),
        claim("imdb: 2-tied lies below mean-field over the curve", _gain("imdb"), increasing),
        claim(
            "the gain is smallest for cifar-100, whose convolutions stay mean-field",
            [key for dataset in THREE for key in _gain(dataset)], _smaller_gain,
        ),
    ),
    published=published("figure7"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip
