"""Exponential families, their two coordinate systems as types, and the one learning rule."""

from __future__ import annotations

import torch

from bayesrule.expfam import learning_rule
from bayesrule.expfam.base_measure import BaseMeasure, UnitBase
from bayesrule.expfam.bernoulli import Bernoulli
from bayesrule.expfam.categorical import Categorical
from bayesrule.expfam.chain_categorical import ChainCategorical
from bayesrule.expfam.chain_gaussian import ChainGaussian
from bayesrule.expfam.concrete import concrete_gradient, straight_through_gradient
from bayesrule.expfam.coordinates import Expectation, Natural, inner
from bayesrule.expfam.curvatures import (
    AbsoluteHessian,
    Curvature,
    GaussNewton,
    Hessian,
    NoCurvature,
    Price,
    SquaredGradient,
    TrueFisher,
)
from bayesrule.expfam.dirichlet import Dirichlet
from bayesrule.expfam.domains import Above, Below, Domain, NegativeDefinite, Real
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.finite_mixture import FiniteMixture, FixedWeightsMixture
from bayesrule.expfam.gamma import Gamma
from bayesrule.expfam.gaussian import GaussianFamily
from bayesrule.expfam.gaussian_diagonal import GaussianDiagonal
from bayesrule.expfam.gaussian_fixed import GaussianFixed
from bayesrule.expfam.gaussian_full import GaussianFull
from bayesrule.expfam.learning_rule import (
    Candidate,
    gradient_in_expectation,
    gradients_in_expectation,
    natural_gradient,
)
from bayesrule.expfam.losses import Loss, OutputModel, of_function
from bayesrule.expfam.newton import solve_natural
from bayesrule.expfam.normal_gamma import NormalGamma
from bayesrule.expfam.normal_wishart import NormalWishart
from bayesrule.expfam.points import Delta, GaussHermite, MonteCarlo, Where, gaussian_gradient, mixture_gradient
from bayesrule.expfam.schedules import Schedule, constant, robbins_monro
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace

FAMILIES: tuple[ExponentialFamily, ...] = (
    GaussianFixed(torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)),
    GaussianDiagonal(),
    GaussianFull(),
    Bernoulli(),
    Gamma(),
    Categorical(),
    Dirichlet(),
    NormalGamma(),
    NormalWishart(),
    ChainGaussian(),
    ChainCategorical(),
    FiniteMixture(GaussianFull(), 2),
)
"""One member of every family, over which the contract tests run; a new family adds its line."""

__all__ = [
    "FAMILIES",
    "Above",
    "AbsoluteHessian",
    "BaseMeasure",
    "Below",
    "Bernoulli",
    "Block",
    "Blockwise",
    "Candidate",
    "Categorical",
    "ChainCategorical",
    "ChainGaussian",
    "Curvature",
    "Delta",
    "Dirichlet",
    "Domain",
    "Expectation",
    "ExponentialFamily",
    "FiniteMixture",
    "FixedWeightsMixture",
    "Gamma",
    "GaussHermite",
    "GaussNewton",
    "GaussianDiagonal",
    "GaussianFamily",
    "GaussianFixed",
    "GaussianFull",
    "Hessian",
    "Loss",
    "MonteCarlo",
    "Natural",
    "NegativeDefinite",
    "NoCurvature",
    "NormalGamma",
    "NormalWishart",
    "OutputModel",
    "ParameterSpace",
    "Price",
    "Real",
    "Schedule",
    "SquaredGradient",
    "TrueFisher",
    "UnitBase",
    "Where",
    "concrete_gradient",
    "constant",
    "gaussian_gradient",
    "gradient_in_expectation",
    "gradients_in_expectation",
    "inner",
    "learning_rule",
    "mixture_gradient",
    "natural_gradient",
    "of_function",
    "robbins_monro",
    "solve_natural",
    "straight_through_gradient",
]
