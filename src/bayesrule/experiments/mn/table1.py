"""Table 1: what is left of the group-sparse VGG-like network, layer by layer, by posterior family."""

from __future__ import annotations

from dataclasses import replace

from bayesrule.experiments.mn import figure5
from bayesrule.experiments.mn.claims import ahead, exactly
from bayesrule.experiments.mn.comparison import comparison
from bayesrule.experiments.mn.recipe import METHODS
from bayesrule.experiments.mn.settings import GROUP_SPARSE, QUICK_VGG, presets

TASK = replace(figure5.TASK, convolutions=12)
TABLE1 = comparison(
    "table1",
    "Weights left in the group-sparse VGG-like network",
    TASK,
    presets("cifar-10", METHODS, quick=QUICK_VGG, paper=GROUP_SPARSE),
    (
        exactly({"weights_total": 62_270}),
        ahead("weights_left", "diag", "mn"),
        ahead("weights_left", "mn-free", "mn"),
        ahead("weights_left", "mn-kronecker", "mn"),
    ),
    "table1.json",
    curves=False,
)
