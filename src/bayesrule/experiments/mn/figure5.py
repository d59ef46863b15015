"""Fig. 5: the VGG-like network on CIFAR-10, group-sparse, by posterior family; the runs are those of Table 1."""

from __future__ import annotations

from bayesrule.experiments.mn.claims import MN_AHEAD, ahead
from bayesrule.experiments.mn.comparison import Task, comparison
from bayesrule.experiments.mn.recipe import METHODS
from bayesrule.experiments.mn.settings import GROUP_SPARSE, QUICK_VGG, presets

TASK = Task("vgg", "cifar-10", "group", flips=True)
FIGURE5 = comparison(
    "figure5",
    "Group-sparse learning of the VGG-like network on CIFAR-10",
    TASK,
    presets("cifar-10", METHODS, quick=QUICK_VGG, paper=GROUP_SPARSE),
    (
        *MN_AHEAD,
        ahead("accuracy", margin=0.5),
        ahead("accuracy", "mn-free"),
        ahead("negative_elbo", "mn-kronecker", "mn"),
    ),
    "figures.json",
)
