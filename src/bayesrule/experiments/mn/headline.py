"""The paper's headline, 87.1 % on CIFAR-10 with 120,884 weights: the 4× network of Table 2, trained for longer.

The network is read at the end, where the KL has its full weight, and, beside it, at the epoch that is best on
validation images, which may lie before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bayesrule.experiments.experiment import Claim, Verdict
from bayesrule.experiments.mn import table2
from bayesrule.experiments.mn.claims import by_method, sparse
from bayesrule.experiments.mn.comparison import comparison
from bayesrule.experiments.mn.settings import HEADLINE, QUICK_VGG, presets
from bayesrule.experiments.rows import Row

PERCENT, WEIGHTS = 87.0, 121_000
TASK = replace(table2.TASK, early=True)


def _early(rows: Sequence[Row]) -> Verdict:
    accuracy, left = (by_method(rows, name)["mn"].value for name in ("accuracy_pruned_early", "weights_left_early"))
    return Verdict.of(accuracy >= PERCENT and left <= WEIGHTS, f"{accuracy:.2f} % with {left:,.0f}")


HEADLINE_RUN = comparison(
    "headline",
    "The group-sparse 4× network, trained for longer",
    TASK,
    presets("cifar-10", ("mn",), quick={**QUICK_VGG, "train": 1_000}, paper=HEADLINE),
    (
        sparse("mn", PERCENT, count=WEIGHTS),
        Claim(f"the same at the epoch that is best on validation images: {PERCENT:g} %, {WEIGHTS:,} weights", _early),
    ),
    "table2.json",
)
