"""Fused or chunked numerical code, each behind a plain signature."""

from bayesrule.kernels.divergence import diagonal_divergence, has_ktied_divergence, ktied_divergence
from bayesrule.kernels.eager import ordinary
from bayesrule.kernels.ktied_layer import ktied_output
from bayesrule.kernels.mean_tap import MeanTap, StoredMean
from bayesrule.kernels.pairs import pair_products
from bayesrule.kernels.sum_log_product import sum_log_product

__all__ = [
    "MeanTap",
    "StoredMean",
    "diagonal_divergence",
    "has_ktied_divergence",
    "ktied_divergence",
    "ktied_output",
    "ordinary",
    "pair_products",
    "sum_log_product",
]
