"""Networks that really become smaller: weights that are noise dropped, dead units cut."""

from bayesrule.prune.cutting import Select
from bayesrule.prune.plan import Cut
from bayesrule.prune.posterior_cut import marginal_parameters
from bayesrule.prune.prune import prune
from bayesrule.prune.pruning import Cost, PrunedWeight, Pruning
from bayesrule.prune.saving import load_pruned, save_pruned
from bayesrule.prune.sparse import SparseTensor, dense_state, sparse_bytes, sparse_state

__all__ = [
    "Cost",
    "Cut",
    "PrunedWeight",
    "Pruning",
    "Select",
    "SparseTensor",
    "dense_state",
    "load_pruned",
    "marginal_parameters",
    "prune",
    "save_pruned",
    "sparse_bytes",
    "sparse_state",
]
