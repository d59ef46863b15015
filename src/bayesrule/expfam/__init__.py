"""Exponential families, their two coordinate systems as types, and the one learning rule."""

from __future__ import annotations

import torch

from bayesrule.expfam import learning_rule
from bayesrule.expfam.base_measure import BaseMeasure, UnitBase
from bayesrule.expfam.bernoulli import Bernoulli
from bayesrule.expfam.coordinates import Expectation, Natural, inner
from bayesrule.expfam.domains import Above, Below, Domain, NegativeDefinite, Real
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.gamma import Gamma
from bayesrule.expfam.gaussian_diagonal import GaussianDiagonal
from bayesrule.expfam.gaussian_fixed import GaussianFixed
from bayesrule.expfam.gaussian_full import GaussianFull
from bayesrule.expfam.learning_rule import gradient_in_expectation, gradients_in_expectation, natural_gradient
from bayesrule.expfam.newton import solve_natural
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace

FAMILIES: tuple[ExponentialFamily, ...] = (
    GaussianFixed(torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)),
    GaussianDiagonal(),
    GaussianFull(),
    Bernoulli(),
    Gamma(),
)
"""One member of every family, over which the contract tests run; a new family adds its line."""

__all__ = [
    "FAMILIES",
    "Above",
    "BaseMeasure",
    "Below",
    "Bernoulli",
    "Block",
    "Blockwise",
    "Domain",
    "Expectation",
    "ExponentialFamily",
    "Gamma",
    "GaussianDiagonal",
    "GaussianFixed",
    "GaussianFull",
    "Natural",
    "NegativeDefinite",
    "ParameterSpace",
    "Real",
    "UnitBase",
    "gradient_in_expectation",
    "gradients_in_expectation",
    "inner",
    "learning_rule",
    "natural_gradient",
    "solve_natural",
]
