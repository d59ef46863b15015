"""Figure 2 of the appendix: as Figure 5, with the He-scaled prior."""

from __future__ import annotations

from bayesrule.experiments.ktied.resnet_ranks import resnet_ranks

APPENDIX_FIGURE2 = resnet_ranks(
    "appendix-figure2", "k-tied Normal, Appendix Figure 2: ResNet-18 under the He-scaled prior", "he-prior"
)
