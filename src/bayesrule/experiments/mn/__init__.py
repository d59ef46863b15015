"""The experiments of the paper on sparse learning with matrix normal posteriors (Rudnev & Kropotov)."""

from bayesrule.experiments.mn.crossover import CROSSOVER
from bayesrule.experiments.mn.export import EXPORT
from bayesrule.experiments.mn.figure1 import FIGURE1
from bayesrule.experiments.mn.figure2 import FIGURE2
from bayesrule.experiments.mn.figure3 import FIGURE3
from bayesrule.experiments.mn.figure4 import FIGURE4
from bayesrule.experiments.mn.figure5 import FIGURE5
from bayesrule.experiments.mn.headline import HEADLINE_RUN
from bayesrule.experiments.mn.section41 import SECTION41
from bayesrule.experiments.mn.table1 import TABLE1
from bayesrule.experiments.mn.table2 import TABLE2
from bayesrule.experiments.mn.table3 import TABLE3

MATRIX_NORMAL = (
    SECTION41, FIGURE1, FIGURE2, FIGURE3, FIGURE4, FIGURE5, TABLE1, TABLE2, TABLE3, HEADLINE_RUN, CROSSOVER, EXPORT,
)  # fmt: skip
"""In the paper's order; the last two go beyond it."""
