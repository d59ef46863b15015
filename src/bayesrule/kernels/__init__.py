"""Fused or chunked numerical code, each behind a plain signature."""

from bayesrule.kernels.sum_log_product import sum_log_product

__all__ = ["sum_log_product"]
