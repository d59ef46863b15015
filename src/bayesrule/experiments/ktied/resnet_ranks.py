"""ResNet-18 with low-rank standard deviations, under either prior: Fig. 5 and the appendix's Fig. 2 alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import low_rank, spectrum_rows
from bayesrule.experiments.ktied.claims import claim, increasing, within, within_fraction
from bayesrule.experiments.ktied.drawing import draw_spectra
from bayesrule.experiments.ktied.measuring import SCORES
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import POSTERIORS, presets
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS = ("cifar-10",)
METRICS = (*SCORES, "floored_entries", "std_top1_min", "mean_top1_max")
SHOWN = (*(f"block_{block}_conv2" for block in range(1, 5)), "dense")


def resnet_ranks(name: str, title: str, run: str) -> Experiment:
    """The experiment for one kind of run."""
    return Experiment(
        id=f"ktied/{name}",
        title=title,
        presets=presets(SETS, POSTERIORS, [run]),
        methods=POSTERIORS,
        datasets=lambda data: SETS,
        metrics=lambda dataset: METRICS,
        run=partial(low_rank.rows, run, lambda dataset: METRICS),
        claims=(
            claim(
                "rank 2 changes mean-field's NLL by less than 15 %",
                [("cifar-10", method, "nll") for method in ("mean-field", "2-tied")], within_fraction(0.15),
            ),
            claim(
                "rank 2 changes mean-field's accuracy by less than half a point",
                [("cifar-10", method, "accuracy") for method in ("mean-field", "2-tied")], within(0.5),
            ),
            claim(
                "rank 1 has a higher NLL than rank 2",
                [("cifar-10", method, "nll") for method in ("2-tied", "1-tied")], increasing,
            ),
            claim(
                "the top singular value explains more of every matrix of standard deviations than of any of means",
                [("cifar-10", "mean-field", metric) for metric in ("mean_top1_max", "std_top1_min")], increasing,
            ),
        ),
        published=published(name.replace("-", "_")),
        devices=("cuda", "cpu"),
        figures=partial(figures, run),
    )  # fmt: skip


def figures(run: str, context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """Spectra of a convolution of each block, and of the last layer."""
    return {name: draw_spectra(spectrum_rows.curves(context, name, run, SHOWN)) for name in context.datasets}
