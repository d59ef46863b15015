"""Fig. 3: a sparse convolutional network on Fashion-MNIST."""

from __future__ import annotations

from bayesrule.experiments.mn.claims import MN_AHEAD
from bayesrule.experiments.mn.comparison import Task, comparison
from bayesrule.experiments.mn.settings import CONVOLUTIONAL, QUICK_CONVOLUTIONAL, presets

TASK = Task("cnn", "fashion-mnist", "ard", convolutions=4)
FIGURE3 = comparison(
    "figure3",
    "A sparse convolutional network on Fashion-MNIST",
    TASK,
    presets("fashion-mnist", ("diag", "mn"), quick=QUICK_CONVOLUTIONAL, paper=CONVOLUTIONAL),
    MN_AHEAD,
    "figures.json",
)
