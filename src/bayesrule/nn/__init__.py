"""Conversion of any network, the draw table, and the objective."""

from bayesrule.nn import annealing
from bayesrule.nn.bayesian_module import BayesianModule, kl, mean_module, posteriors
from bayesrule.nn.bayesianize import bayesianize
from bayesrule.nn.conversion import Conversion, ConvertedParameter
from bayesrule.nn.objective import Loss, NegativeELBO

__all__ = [
    "BayesianModule",
    "Conversion",
    "ConvertedParameter",
    "Loss",
    "NegativeELBO",
    "annealing",
    "bayesianize",
    "kl",
    "mean_module",
    "posteriors",
]
