"""The experiments of the paper on k-tied Normal posteriors (Swiatkowski et al., 2020)."""

from bayesrule.experiments.ktied.appendix_figure2 import APPENDIX_FIGURE2
from bayesrule.experiments.ktied.appendix_figure3 import APPENDIX_FIGURE3
from bayesrule.experiments.ktied.appendix_figure4 import APPENDIX_FIGURE4
from bayesrule.experiments.ktied.appendix_figure5 import APPENDIX_FIGURE5
from bayesrule.experiments.ktied.appendix_table1 import APPENDIX_TABLE1
from bayesrule.experiments.ktied.figure3 import FIGURE3
from bayesrule.experiments.ktied.figure4 import FIGURE4
from bayesrule.experiments.ktied.figure5 import FIGURE5
from bayesrule.experiments.ktied.figure6_convergence import FIGURE6_CONVERGENCE
from bayesrule.experiments.ktied.figure6_predictive import FIGURE6_PREDICTIVE
from bayesrule.experiments.ktied.figure6_snr import FIGURE6_SNR
from bayesrule.experiments.ktied.figure7 import FIGURE7
from bayesrule.experiments.ktied.local import LOCAL
from bayesrule.experiments.ktied.search import SEARCH
from bayesrule.experiments.ktied.table1 import TABLE1
from bayesrule.experiments.ktied.table2 import TABLE2
from bayesrule.experiments.ktied.table3 import TABLE3
from bayesrule.experiments.ktied.table4 import TABLE4
from bayesrule.experiments.ktied.which_k import WHICH_K

KTIED = (
    TABLE1, FIGURE3, FIGURE4, TABLE2, FIGURE5, TABLE3, TABLE4, FIGURE6_PREDICTIVE, FIGURE6_SNR, FIGURE6_CONVERGENCE,
    FIGURE7, APPENDIX_FIGURE2, APPENDIX_FIGURE3, APPENDIX_FIGURE4, APPENDIX_FIGURE5, APPENDIX_TABLE1, SEARCH, WHICH_K,
    LOCAL,
)  # fmt: skip
"""In the paper's order, then those beyond it."""

__all__ = ["KTIED"]
