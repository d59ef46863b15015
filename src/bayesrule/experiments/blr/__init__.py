"""The Bayesian learning rule paper: its tables, its figure, its multimodal optimizer, and its optimizers on images."""

from __future__ import annotations

from bayesrule.experiments.blr.binary import BINARY
from bayesrule.experiments.blr.figure1 import FIGURE1
from bayesrule.experiments.blr.multimodal import MULTIMODAL
from bayesrule.experiments.blr.table1 import TABLE1
from bayesrule.experiments.blr.table2 import TABLE2
from bayesrule.experiments.blr.uncertainty import UNCERTAINTY

BLR = (TABLE1, TABLE2, FIGURE1, MULTIMODAL, UNCERTAINTY, BINARY)

__all__ = ["BINARY", "BLR", "FIGURE1", "MULTIMODAL", "TABLE1", "TABLE2", "UNCERTAINTY"]
