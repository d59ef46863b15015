"""Inference in graphical models: factors give E[log f] as a function of the μ's, and the gradient is the message."""

from __future__ import annotations

from bayesrule.inference.empirical import EmpiricalPosterior
from bayesrule.inference.gaussian_mixture import bayesian_mixture, complete_mixture
from bayesrule.inference.gaussian_process import (
    Kernel,
    gp_classification,
    gp_predict,
    gp_regression,
    squared_exponential,
)
from bayesrule.inference.glm import Likelihood, LogisticLikelihood, PoissonLikelihood, glm
from bayesrule.inference.hidden_markov import hidden_markov
from bayesrule.inference.hmc import HMC, Diagnostics, hmc
from bayesrule.inference.laplace import Laplace, laplace
from bayesrule.inference.laplace_linear import LinearizedLaplace, OutputLaw
from bayesrule.inference.latent_factors import factor_posterior
from bayesrule.inference.linear_regression import linear_regression, ridge
from bayesrule.inference.mc_dropout import MCDropout
from bayesrule.inference.model import Factor, Model
from bayesrule.inference.passing import Fit, fit_vmp, global_step, is_rising, local_step
from bayesrule.inference.sampled_network import SampledNetwork
from bayesrule.inference.state_space import StateSpace
from bayesrule.inference.topics import Topics

__all__ = [
    "HMC",
    "Diagnostics",
    "EmpiricalPosterior",
    "Factor",
    "Fit",
    "Kernel",
    "Laplace",
    "Likelihood",
    "LinearizedLaplace",
    "LogisticLikelihood",
    "MCDropout",
    "Model",
    "OutputLaw",
    "PoissonLikelihood",
    "SampledNetwork",
    "StateSpace",
    "Topics",
    "bayesian_mixture",
    "complete_mixture",
    "factor_posterior",
    "fit_vmp",
    "glm",
    "global_step",
    "gp_classification",
    "gp_predict",
    "gp_regression",
    "hidden_markov",
    "hmc",
    "is_rising",
    "laplace",
    "linear_regression",
    "local_step",
    "ridge",
    "squared_exponential",
]
