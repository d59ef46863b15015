"""The methods of the comparison on tables: the library's own, and what people would pick instead."""

from bayesrule.experiments.rivals.catboost import CATBOOST
from bayesrule.experiments.rivals.gaussian_process import GAUSSIAN_PROCESS
from bayesrule.experiments.rivals.laplace import LAPLACE
from bayesrule.experiments.rivals.method import Method, Options
from bayesrule.experiments.rivals.mlp_ensemble import MLP_ENSEMBLE
from bayesrule.experiments.rivals.networks import BAYESRULE, DEEP_ENSEMBLE, POINT
from bayesrule.experiments.rivals.ngboost import NGBOOST

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        BAYESRULE, POINT, DEEP_ENSEMBLE, MLP_ENSEMBLE, GAUSSIAN_PROCESS, NGBOOST, CATBOOST, LAPLACE,
    )
}  # fmt: skip

__all__ = ["METHODS", "Method", "Options"]
