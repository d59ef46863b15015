"""Noisy natural gradient: the tables and figures of its regressions and of active learning."""

from bayesrule.experiments.nng.cifar10 import CIFAR10
from bayesrule.experiments.nng.conventions import CONVENTIONS
from bayesrule.experiments.nng.figure1 import FIGURE1
from bayesrule.experiments.nng.search import DEEPER_SEARCH, SEARCH
from bayesrule.experiments.nng.table1 import TABLE1
from bayesrule.experiments.nng.table2 import TABLE2
from bayesrule.experiments.nng.table3 import TABLE3
from bayesrule.experiments.nng.table4 import TABLE4

NOISY_NATURAL_GRADIENT = (TABLE1, FIGURE1, TABLE2, TABLE3, TABLE4, CONVENTIONS, SEARCH, DEEPER_SEARCH, CIFAR10)

__all__ = ["NOISY_NATURAL_GRADIENT"]
