"""Figure 5: ResNet-18's spectra, and its scores with low-rank standard deviations."""

from __future__ import annotations

from bayesrule.experiments.ktied.resnet_ranks import resnet_ranks

FIGURE5 = resnet_ranks("figure5", "k-tied Normal, Figure 5: low-rank standard deviations in ResNet-18", "trained")
