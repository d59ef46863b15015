"""Table 3: the quality of ResNet-18's uncertainty with low-rank standard deviations."""

from __future__ import annotations

from functools import partial

from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import low_rank
from bayesrule.experiments.ktied.claims import claim, within
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import POSTERIORS, presets

SETS = ("cifar-10",)
METRICS = ("brier_tfp", "brier", "nll", "ece", "floored_entries")

TABLE3 = Experiment(
    id="ktied/table3",
    title="k-tied Normal, Table 3: quality of ResNet-18's uncertainty",
    presets=presets(SETS, POSTERIORS, ["trained"]),
    methods=POSTERIORS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=partial(low_rank.rows, "trained", lambda dataset: METRICS),
    claims=(
        claim(
            "ranks 2 and 3 change the Brier score by less than 0.01",
            [("cifar-10", method, "brier") for method in ("mean-field", "2-tied", "3-tied")], within(0.01),
        ),
        claim(
            "ranks 2 and 3 change the ECE by less than 0.01",
            [("cifar-10", method, "ece") for method in ("mean-field", "2-tied", "3-tied")], within(0.01),
        ),
    ),
    published=published("table3"),
    devices=("cuda", "cpu"),
)  # fmt: skip
