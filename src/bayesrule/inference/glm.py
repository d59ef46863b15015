"""Likelihoods of a linear predictor: E_q[log p(y | f)] as a function of the mean and variance of f."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam import Expectation, GaussianFull
from bayesrule.expfam.points import check_count, standard_normal_grid
from bayesrule.inference.examples import Inputs, Targets, paired
from bayesrule.inference.model import Expectations, Factor, Model
from bayesrule.posteriors.family import check_positive

Examples = Float[Tensor, " examples"]


class Likelihood(ABC):
    """p(y | f) of one example with f ~ N(m, v)."""

    targets: ClassVar[str]
    """Which y it takes, in words."""
    remedy: ClassVar[str] = ""
    """What to do with others."""

    @abstractmethod
    def takes(self, y: Examples) -> Bool[Tensor, " examples"]:
        """Whether each y is one of its targets."""

    @abstractmethod
    def expected_log(self, y: Examples, mean: Examples, variance: Examples) -> Examples:
        """E[log p(y | f)]."""

    @final
    def check(self, y: Examples) -> None:
        """Refuse targets that it does not take."""
        others = y[~self.takes(y)]
        if others.numel():
            raise InvalidArgument(
                f"{type(self).__name__} takes {self.targets}",
                got=f"{others.numel()} other targets, such as {others[0].item():g}", remedy=self.remedy,
            )  # fmt: skip


@dataclass(frozen=True)
class LogisticLikelihood(Likelihood):
    """y ∈ {0, 1} with P(y = 1) = 1/(1 + exp(−f)); the expectation by Gauss–Hermite quadrature."""

    order: int = 40
    targets: ClassVar[str] = "labels of 0 and 1"
    remedy: ClassVar[str] = "Labels of −1 and +1 become such by (y > 0).double()."

    def __post_init__(self) -> None:
        check_count("The order of the quadrature", self.order)

    def takes(self, y: Examples) -> Bool[Tensor, " examples"]:
        """0 or 1."""
        return (y == 0) | (y == 1)

    def expected_log(self, y: Examples, mean: Examples, variance: Examples) -> Examples:
        """E[yf − log(1 + exp f)]."""
        nodes, weights = standard_normal_grid(self.order, mean)
        f = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * nodes
        return y * mean - torch.nn.functional.softplus(f) @ weights


@dataclass(frozen=True)
class PoissonLikelihood(Likelihood):
    """Counts y with rate exp f, for which the expectation has a formula."""

    targets: ClassVar[str] = "counts: 0, 1, 2 and so on"
    remedy: ClassVar[str] = "Give numbers of events, not rates or logarithms."

    def takes(self, y: Examples) -> Bool[Tensor, " examples"]:
        """0, 1, 2 and so on."""
        return (y >= 0) & (y == y.floor()) & y.isfinite()

    def expected_log(self, y: Examples, mean: Examples, variance: Examples) -> Examples:
        """Ym − exp(m + ½v) − log y!."""
        return y * mean - torch.exp(mean + 0.5 * variance) - torch.lgamma(y + 1)


def predictor_moments(x: Inputs, mu: Expectation) -> tuple[Examples, Examples]:
    """Mean xᵀm and variance xᵀΣx of f = xᵀθ, from μ of a full Gaussian."""
    mean = x @ mu["linear"]
    covariance = mu["quadratic"] - torch.outer(mu["linear"], mu["linear"])
    return mean, ((x @ covariance) * x).sum(-1)


def likelihood_factor(name: str, x: Inputs, y: Examples, likelihood: Likelihood) -> Factor:
    """Π_i p(y_i | x_iᵀθ), for the node of θ, in whose type the examples are taken."""
    likelihood.check(y)

    def expected_log(mu: Expectations) -> Tensor:
        own = mu[name]["linear"].dtype
        return likelihood.expected_log(y.to(own), *predictor_moments(x.to(own), mu[name]))

    return Factor((name,), expected_log)


def glm(x: Inputs, y: Targets, likelihood: Likelihood, *, prior_precision: float) -> Model:
    """Regression with weights θ ~ N(0, I/δ) and a non-conjugate likelihood, under one full Gaussian.

    Args:
        x: A row for each example; a column of ones is an intercept.
        y: The targets, as a vector of those that the likelihood takes: 0 and 1, or counts.
        likelihood: `LogisticLikelihood()` or `PoissonLikelihood()`.
        prior_precision: δ.

    Returns:
        The model with the one node ``"weights"``, for `global_step`.
    """
    check_positive("prior_precision", prior_precision)
    inputs, targets = paired(x, y)

    def prior(mu: Expectations) -> Tensor:
        return -0.5 * prior_precision * torch.trace(mu["weights"]["quadratic"])

    return Model(
        {"weights": GaussianFull()},
        (Factor(("weights",), prior), likelihood_factor("weights", inputs, targets, likelihood)),
    )
