"""Fig. 1: a sparse fully-connected network on MNIST, every weight with its own prior variance."""

from __future__ import annotations

from bayesrule.experiments.mn.claims import MN_AHEAD, sparse
from bayesrule.experiments.mn.comparison import Task, comparison
from bayesrule.experiments.mn.settings import FULLY_CONNECTED, QUICK_FULLY_CONNECTED, presets

TASK = Task("fc", "mnist", "ard")
FIGURE1 = comparison(
    "figure1",
    "A sparse fully-connected network on MNIST",
    TASK,
    presets("mnist", ("diag", "mn"), quick=QUICK_FULLY_CONNECTED, paper=FULLY_CONNECTED),
    (sparse("diag", 98.0, share=0.05), sparse("mn", 98.0, share=0.05), *MN_AHEAD),
    "figures.json",
)
