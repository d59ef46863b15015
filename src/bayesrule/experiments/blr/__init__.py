"""The Bayesian learning rule paper: its tables, its figure, and its multimodal optimizer."""

from __future__ import annotations

from bayesrule.experiments.blr.figure1 import FIGURE1
from bayesrule.experiments.blr.multimodal import MULTIMODAL
from bayesrule.experiments.blr.table1 import TABLE1
from bayesrule.experiments.blr.table2 import TABLE2

BLR = (TABLE1, TABLE2, FIGURE1, MULTIMODAL)

__all__ = ["BLR", "FIGURE1", "MULTIMODAL", "TABLE1", "TABLE2"]
