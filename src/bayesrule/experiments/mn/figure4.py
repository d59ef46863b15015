"""Fig. 4: the VGG-like network on CIFAR-10 with one learned prior variance for all weights; nothing is made sparse."""

from __future__ import annotations

from bayesrule.experiments.mn.claims import ahead
from bayesrule.experiments.mn.comparison import Task, comparison
from bayesrule.experiments.mn.settings import ONE_VARIANCE, QUICK_VGG, presets

TASK = Task("vgg", "cifar-10", "one-variance")
FIGURE4 = comparison(
    "figure4",
    "The VGG-like network on CIFAR-10, one learned prior variance",
    TASK,
    presets("cifar-10", ("diag", "mn"), quick=QUICK_VGG, paper=ONE_VARIANCE),
    (ahead("negative_elbo"), ahead("accuracy"), ahead("accuracy", margin=1.5)),
    "figures.json",
)
