"""Figure 6, bottom right: −ELBO on validation data as training goes on, without annealing."""

from __future__ import annotations

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import convergence
from bayesrule.experiments.ktied.claims import claim, fraction_of_first
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import POSTERIORS, SNR_LABELS, presets
from bayesrule.experiments.rows import Row

SETS = ("mnist",)
METRICS = tuple(f"negative_elbo_{step}" for step in SNR_LABELS)


def run(context: Context) -> list[Row]:
    """At the three steps of the paper; the variant names what the speed depends on."""
    return convergence.rows(context, lambda name: name.startswith("negative_elbo_"))


FIGURE6_CONVERGENCE = Experiment(
    id="ktied/figure6-convergence",
    title="k-tied Normal, Figure 6 bottom right: convergence of the ELBO",
    presets=presets(SETS, POSTERIORS, [convergence.RUN], quick_methods=("mean-field", "2-tied")),
    methods=POSTERIORS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=tuple(
        claim(
            f"at step 9000 the −ELBO of {method} is at most a third of mean-field's",
            [("mnist", "mean-field", "negative_elbo_9000"), ("mnist", method, "negative_elbo_9000")],
            fraction_of_first(1 / 3),
        )
        for method in ("1-tied", "2-tied", "3-tied")
    ),
    published=published("figure6_convergence"),
    devices=("cuda", "cpu"),
)
