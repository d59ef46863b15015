"""Table 2: the 4× network, group-sparse: what is left if weights, only whole rows or only whole columns are dropped.

All three are counted on the same trained network; its accuracy is given after each kind of pruning.
"""

from __future__ import annotations

from bayesrule.experiments.mn.claims import ahead, exactly, sparse, untrainable
from bayesrule.experiments.mn.comparison import Task, comparison
from bayesrule.experiments.mn.settings import FOUR_TIMES, QUICK_VGG, presets

TASK = Task("vgg4x", "cifar-10", "group", flips=True, convolutions=12)
TABLE2 = comparison(
    "table2",
    "What is left of the group-sparse 4× network",
    TASK,
    presets("cifar-10", ("mn", "diag"), quick={**QUICK_VGG, "train": 1_000}, paper=FOUR_TIMES),
    (
        exactly({"weights_total": 246_940, "rows_total": 4_527, "columns_total": 540}),
        sparse("mn", 87.0, count=121_000),
        sparse("diag", 87.0, count=121_000),
        untrainable("diag", 50.0),
        ahead("accuracy_pruned"),
        ahead("weights_left"),
    ),
    "table2.json",
)
