"""Factor analysis and probabilistic PCA: the posterior of the factors in one step of the rule."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms import bayes_rule
from bayesrule.expfam import Expectation, GaussianFull, Natural


def factor_posterior(
    x: Float[Tensor, "examples outputs"],
    loadings: Float[Tensor, "outputs factors"],
    noise_variance: Float[Tensor, " outputs"],
    mean: Float[Tensor, " outputs"],
) -> Natural:
    """Posterior of z_n ~ N(0, I) given x_n = Wz_n + mean + N(0, diag ψ); for PCA all ψ are equal   (Sec. 5.1)."""
    weighted = loadings / noise_variance.unsqueeze(-1)
    precision = loadings.mT @ weighted + torch.eye(loadings.shape[-1]).to(x)
    target = (x - mean) @ weighted

    def expected_loss(mu: Expectation) -> Tensor:
        return 0.5 * (precision * mu["quadratic"]).sum() - (target * mu["linear"]).sum()

    dim = loadings.shape[-1]
    start = GaussianFull().from_mean_precision(x.new_zeros(len(x), dim), torch.eye(dim).to(x).expand(len(x), dim, dim))
    return bayes_rule(GaussianFull(), expected_loss, start)
