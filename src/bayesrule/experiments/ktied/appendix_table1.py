"""Table 1 of the appendix: how many parameters of ResNet-18 low-rank standard deviations save."""

from __future__ import annotations

from functools import partial

from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import low_rank
from bayesrule.experiments.ktied.claims import at_least, claim, within
from bayesrule.experiments.ktied.measuring import Cell
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import POSTERIORS, presets

SETS = ("cifar-10",)
METRICS = ("parameters", "reduction_percent", "nll", "accuracy")


def _reduction(cell: Cell, free: Cell) -> Cell:
    return {"reduction_percent": 100 * (1 - cell["parameters"] / free["parameters"])}


APPENDIX_TABLE1 = Experiment(
    id="ktied/appendix-table1",
    title="k-tied Normal, Appendix Table 1: parameters of ResNet-18 with low-rank standard deviations",
    presets=presets(SETS, POSTERIORS, ["trained"]),
    methods=POSTERIORS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=partial(low_rank.rows, "trained", lambda dataset: METRICS, more=_reduction),
    claims=(
        claim(
            "rank 2 saves more than 45 % of all parameters",
            [("cifar-10", "2-tied", "reduction_percent")], at_least(45.0),
        ),
        claim(
            "and changes the accuracy by less than half a point",
            [("cifar-10", method, "accuracy") for method in ("mean-field", "2-tied")], within(0.5),
        ),
    ),
    published=published("appendix_table1"),
    devices=("cuda", "cpu"),
)  # fmt: skip
