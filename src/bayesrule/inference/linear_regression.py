"""Bayesian linear regression: known noise (one step), or unknown noise (message passing)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms import bayes_rule
from bayesrule.expfam import Expectation, Gamma, GaussianFull, Natural
from bayesrule.inference.examples import Inputs, Targets, paired
from bayesrule.inference.model import Expectations, Factor, Model
from bayesrule.posteriors.family import check_positive


def ridge(x: Inputs, y: Targets, *, prior_precision: float, noise_precision: float = 1.0) -> Natural:
    """N(m, S⁻¹) with S = τXᵀX + δI, Sm = τXᵀy: the coefficients of μ in the expected loss   (Sec. 1.3.3, Eq. 14)."""
    check_positive("prior_precision", prior_precision)
    check_positive("noise_precision", noise_precision)
    x, y = paired(x, y)
    eye = prior_precision * torch.eye(x.shape[-1]).to(x)

    def expected_loss(mu: Expectation) -> Tensor:
        return 0.5 * noise_precision * expected_misfit(x, y, mu) + 0.5 * (eye * mu["quadratic"]).sum()

    return bayes_rule(GaussianFull(), expected_loss, standard_start(x))


def linear_regression(
    x: Inputs, y: Targets, *, prior_precision: float, noise_shape: float = 1.0, noise_rate: float = 1.0
) -> Model:
    """Y ~ N(Xw, 1/τ), w ~ N(0, I/δ), τ ~ Gamma(a, b), with q(w) Gaussian and q(τ) gamma.

    E[log p(y | w, τ)] = ½N E[log τ] − ½E[τ]E[|y − Xw|²]: a product of two linear functions, one of each node's μ.
    """
    for name, scale in (
        ("prior_precision", prior_precision), ("noise_shape", noise_shape), ("noise_rate", noise_rate),
    ):  # fmt: skip
        check_positive(name, scale)
    inputs, targets = paired(x, y)

    def likelihood(mu: Expectations) -> Tensor:
        misfit = expected_misfit(inputs, targets, mu["weights"])
        return 0.5 * len(targets) * mu["noise"]["log"] - 0.5 * mu["noise"]["linear"] * misfit

    def weights_prior(mu: Expectations) -> Tensor:
        return -0.5 * prior_precision * torch.trace(mu["weights"]["quadratic"])

    def noise_prior(mu: Expectations) -> Tensor:
        return (noise_shape - 1) * mu["noise"]["log"] - noise_rate * mu["noise"]["linear"]

    return Model(
        {"weights": GaussianFull(), "noise": Gamma()},
        (
            Factor(("weights", "noise"), likelihood),
            Factor(("weights",), weights_prior),
            Factor(("noise",), noise_prior),
        ),
    )


def expected_misfit(x: Inputs, y: Float[Tensor, " examples"], mu: Expectation) -> Float[Tensor, ""]:
    """E|y − Xw|² as a linear function of μ, in whose type the examples are taken."""
    x, y = x.to(mu["linear"].dtype), y.to(mu["linear"].dtype)
    return y @ y - 2 * (y @ x) @ mu["linear"] + ((x.mT @ x) * mu["quadratic"]).sum()


def standard_start(x: Inputs) -> Natural:
    """N(0, I) over the columns of x, to begin with."""
    dim = x.shape[-1]
    return GaussianFull().from_mean_precision(x.new_zeros(dim), torch.eye(dim).to(x))
