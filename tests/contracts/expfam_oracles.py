"""An independent account of every exponential family, by torch.distributions and quadrature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.integrate
import scipy.stats
import torch
import torch.distributions as D
from expfam_joint_oracles import (
    ChainCategoricalOracle,
    ChainGaussianOracle,
    FiniteMixtureOracle,
    NormalGammaOracle,
    NormalWishartOracle,
    digamma,
)
from torch import Tensor

from bayesrule.expfam import (
    Bernoulli,
    Categorical,
    ChainCategorical,
    ChainGaussian,
    Dirichlet,
    ExponentialFamily,
    FiniteMixture,
    Gamma,
    GaussianDiagonal,
    GaussianFixed,
    GaussianFull,
    Natural,
    NormalGamma,
    NormalWishart,
)


@dataclass(frozen=True)
class Oracle:
    """An independent account of q_λ: a torch distribution, θ as its value, and E[T] by closed form or quadrature."""

    distribution: Callable[[ExponentialFamily, Natural], D.Distribution]
    moments: Callable[[D.Distribution], dict[str, Tensor]]
    encode: Callable[[Tensor], Tensor] = lambda theta: theta


def gaussian(precision: Tensor, linear: Tensor) -> D.MultivariateNormal:
    mean = torch.linalg.solve(precision, linear.unsqueeze(-1)).squeeze(-1)
    return D.MultivariateNormal(mean, precision_matrix=precision)


def diagonal_gaussian(_: ExponentialFamily, natural: Natural) -> D.Distribution:
    variance = -1 / (2 * natural["quadratic"])
    return D.Independent(D.Normal(variance * natural["linear"], variance.sqrt()), 1)


def full_moments(q: D.MultivariateNormal) -> dict[str, Tensor]:
    return {"linear": q.mean, "quadratic": q.mean.unsqueeze(-1) @ q.mean.unsqueeze(-2) + q.covariance_matrix}


def expected_log_of_gamma(shape: float, rate: float) -> float:
    """∫ log θ q(θ) dθ over t = log θ, in pieces around the bulk so that no piece is missed."""
    law = scipy.stats.loggamma(shape, loc=-np.log(rate))
    points = [law.ppf(p) for p in (1e-13, 1e-6, 1e-2, 0.5, 0.99, 1 - 1e-6)] + [law.isf(1e-13)]
    options = {"epsabs": 1e-13, "epsrel": 1e-13, "limit": 200}
    return sum(scipy.integrate.quad(lambda t: t * law.pdf(t), *piece, **options)[0] for piece in pairwise(points))


def gamma_moments(q: D.Gamma) -> dict[str, Tensor]:
    logs = np.vectorize(expected_log_of_gamma)(q.concentration.numpy(), q.rate.numpy())
    return {"linear": q.mean, "log": torch.as_tensor(logs, dtype=torch.float64)}


ORACLES: dict[type[ExponentialFamily], Oracle] = {
    GaussianFixed: Oracle(
        lambda family, natural: gaussian(family.precision, natural["linear"]), lambda q: {"linear": q.mean}
    ),
    GaussianDiagonal: Oracle(
        diagonal_gaussian, lambda q: {"linear": q.mean, "quadratic": q.mean.square() + q.variance}
    ),
    GaussianFull: Oracle(lambda _, natural: gaussian(-2 * natural["quadratic"], natural["linear"]), full_moments),
    Bernoulli: Oracle(
        lambda _, natural: D.Independent(D.Bernoulli(logits=2 * natural["linear"]), 1),
        lambda q: {"linear": q.mean - (1 - q.mean)},
        encode=lambda theta: (theta + 1) / 2,
    ),
    Gamma: Oracle(lambda _, natural: D.Gamma(natural["log"] + 1, -natural["linear"]), gamma_moments),
    Categorical: Oracle(
        lambda _, natural: D.OneHotCategorical(
            logits=torch.cat([natural["logits"], torch.zeros_like(natural["logits"][..., :1])], dim=-1)
        ),
        lambda q: {"logits": q.probs[..., :-1]},
    ),
    Dirichlet: Oracle(
        lambda _, natural: D.Dirichlet(natural["log"] + 1),
        lambda q: {"log": digamma(q.concentration) - digamma(q.concentration.sum(-1, keepdim=True))},
    ),
    NormalGamma: Oracle(NormalGammaOracle, NormalGammaOracle.moments),
    NormalWishart: Oracle(NormalWishartOracle, NormalWishartOracle.moments),
    ChainGaussian: Oracle(ChainGaussianOracle, ChainGaussianOracle.moments),
    ChainCategorical: Oracle(ChainCategoricalOracle, ChainCategoricalOracle.moments),
    FiniteMixture: Oracle(FiniteMixtureOracle, FiniteMixtureOracle.moments),
}
