"""Likelihoods of a linear predictor: E_q[log p(y | f)] as a function of the mean and variance of f."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam import Expectation, GaussianFull
from bayesrule.expfam.points import standard_normal_grid
from bayesrule.inference.model import Expectations, Factor, Model

Examples = Float[Tensor, " examples"]
Inputs = Float[Tensor, "examples dim"]


class Likelihood(ABC):
    """p(y | f) of one example with f ~ N(m, v)."""

    @abstractmethod
    def expected_log(self, y: Examples, mean: Examples, variance: Examples) -> Examples:
        """E[log p(y | f)]."""


@dataclass(frozen=True)
class LogisticLikelihood(Likelihood):
    """y ∈ {0, 1} with P(y = 1) = 1/(1 + exp(−f)); the expectation by Gauss–Hermite quadrature."""

    order: int = 40

    def expected_log(self, y: Examples, mean: Examples, variance: Examples) -> Examples:
        """E[yf − log(1 + exp f)]."""
        nodes, weights = standard_normal_grid(self.order, mean)
        f = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * nodes
        return y * mean - torch.nn.functional.softplus(f) @ weights


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """Counts y with rate exp f, for which the expectation has a formula."""

    def expected_log(self, y: Examples, mean: Examples, variance: Examples) -> Examples:
        """Ym − exp(m + ½v) − log y!."""
        return y * mean - torch.exp(mean + 0.5 * variance) - torch.lgamma(y + 1)


def predictor_moments(x: Inputs, mu: Expectation) -> tuple[Examples, Examples]:
    """Mean xᵀm and variance xᵀΣx of f = xᵀθ, from μ of a full Gaussian."""
    mean = x @ mu["linear"]
    covariance = mu["quadratic"] - torch.outer(mu["linear"], mu["linear"])
    return mean, ((x @ covariance) * x).sum(-1)


def likelihood_factor(name: str, x: Inputs, y: Examples, likelihood: Likelihood) -> Factor:
    """Π_i p(y_i | x_iᵀθ), for the node of θ."""

    def expected_log(mu: Expectations) -> Tensor:
        return likelihood.expected_log(y, *predictor_moments(x, mu[name]))

    return Factor((name,), expected_log)


def glm(x: Inputs, y: Examples, likelihood: Likelihood, *, prior_precision: float) -> Model:
    """Regression with weights θ ~ N(0, I/δ) and a non-conjugate likelihood, under one full Gaussian."""

    def prior(mu: Expectations) -> Tensor:
        return -0.5 * prior_precision * torch.trace(mu["weights"]["quadratic"])

    return Model(
        {"weights": GaussianFull()},
        (Factor(("weights",), prior), likelihood_factor("weights", x, y, likelihood)),
    )
