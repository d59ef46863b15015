"""Fig. 2: the sparse fully-connected network on Fashion-MNIST."""

from __future__ import annotations

from bayesrule.experiments.mn.claims import MN_AHEAD
from bayesrule.experiments.mn.comparison import Task, comparison
from bayesrule.experiments.mn.settings import FASHION, QUICK_FULLY_CONNECTED, presets

TASK = Task("fc", "fashion-mnist", "ard")
FIGURE2 = comparison(
    "figure2",
    "A sparse fully-connected network on Fashion-MNIST",
    TASK,
    presets("fashion-mnist", ("diag", "mn"), quick=QUICK_FULLY_CONNECTED, paper=FASHION),
    MN_AHEAD,
    "figures.json",
)
