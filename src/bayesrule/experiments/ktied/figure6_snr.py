"""Figure 6, top right: signal-to-noise ratio of the gradients of the log standard deviations of layer Dense 2."""

from __future__ import annotations

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import convergence
from bayesrule.experiments.ktied.claims import claim, times_first
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import POSTERIORS, SNR_LABELS, presets
from bayesrule.experiments.rows import Row

SETS = ("mnist",)
METRICS = tuple(f"snr_{kind}_{step}" for step in SNR_LABELS for kind in convergence.SNR_KINDS)


def run(context: Context) -> list[Row]:
    """Without annealing; mean, median and ratio of sums over the parameters, each over seeds."""
    return convergence.rows(context, lambda name: name.startswith("snr_"))


FIGURE6_SNR = Experiment(
    id="ktied/figure6-snr",
    title="k-tied Normal, Figure 6 top right: signal-to-noise ratio of gradients",
    presets=presets(SETS, POSTERIORS, [convergence.RUN], quick_methods=("mean-field", "2-tied")),
    methods=POSTERIORS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=tuple(
        claim(
            f"at step 1000 the median ratio of {method} is at least ten times mean-field's",
            [("mnist", "mean-field", "snr_median_1000"), ("mnist", method, "snr_median_1000")], times_first(10.0),
        )
        for method in ("1-tied", "2-tied", "3-tied")
    ),
    published=published("figure6_snr"),
    devices=("cuda", "cpu"),
)  # fmt: skip
