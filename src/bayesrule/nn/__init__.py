"""Conversion of any network, the draw table, the objective, and saving."""

from bayesrule.nn import annealing
from bayesrule.nn.bayesian_module import BayesianModule, kl, mean_module, posteriors
from bayesrule.nn.bayesianize import bayesianize
from bayesrule.nn.conversion import Conversion, ConvertedParameter
from bayesrule.nn.latent import Latent
from bayesrule.nn.objective import Loss, NegativeELBO
from bayesrule.nn.saving import ModelFolderError, load, save

__all__ = [
    "BayesianModule",
    "Conversion",
    "ConvertedParameter",
    "Latent",
    "Loss",
    "ModelFolderError",
    "NegativeELBO",
    "annealing",
    "bayesianize",
    "kl",
    "load",
    "mean_module",
    "posteriors",
    "save",
]
