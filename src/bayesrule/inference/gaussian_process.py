"""Gaussian processes: regression in one step of the rule, classification by damped ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms import bayes_rule
from bayesrule.expfam import Expectation, GaussianFull, Natural
from bayesrule.inference.glm import Likelihood, likelihood_factor
from bayesrule.inference.model import Expectations, Factor, Model

Inputs = Float[Tensor, "examples dim"]
Kernel = Callable[[Float[Tensor, "rows dim"], Float[Tensor, "columns dim"]], Float[Tensor, "rows columns"]]


def squared_exponential(scale: float = 1.0, length: float = 1.0) -> Kernel:
    """k(x, x') = scale² exp(−½|x − x'|²/length²)."""

    def kernel(left: Tensor, right: Tensor) -> Tensor:
        distance = (left.unsqueeze(-2) - right.unsqueeze(-3)).square().sum(-1)
        return scale**2 * torch.exp(-0.5 * distance / length**2)

    return kernel


def gp_prior(covariance: Float[Tensor, "examples examples"]) -> Callable[[Expectation], Tensor]:
    """E_q[log N(f; 0, K)] = −½ tr(K⁻¹E[ffᵀ]) + constant."""
    precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    return lambda mu: -0.5 * (precision * mu["quadratic"]).sum()


def gp_regression(
    x: Inputs, y: Float[Tensor, " examples"], kernel: Kernel, *, noise_std: float, jitter: float = 1e-9
) -> Natural:
    """The posterior of f at the inputs: conjugate, so one step   (Sec. 5.1)."""
    prior = gp_prior(kernel(x, x) + _jitter(x, jitter))

    def expected_loss(mu: Expectation) -> Tensor:
        misfit = y @ y - 2 * y @ mu["linear"] + torch.trace(mu["quadratic"])
        return 0.5 * misfit / noise_std**2 - prior(mu)

    eye = torch.eye(len(x)).to(x)
    return bayes_rule(GaussianFull(), expected_loss, GaussianFull().from_mean_precision(torch.zeros_like(y), eye))


def gp_classification(
    x: Inputs, y: Float[Tensor, " examples"], kernel: Kernel, likelihood: Likelihood, *, jitter: float = 1e-9
) -> Model:
    """The latent function at the inputs as one Gaussian node, a non-conjugate factor for each label."""
    prior = gp_prior(kernel(x, x) + _jitter(x, jitter))

    def of_node(mu: Expectations) -> Tensor:
        return prior(mu["f"])

    labels = likelihood_factor("f", torch.eye(len(x)).to(x), y, likelihood)
    return Model({"f": GaussianFull()}, (Factor(("f",), of_node), labels))


def gp_predict(
    natural: Natural, x: Inputs, new: Float[Tensor, "new dim"], kernel: Kernel, *, jitter: float = 1e-9
) -> tuple[Float[Tensor, " new"], Float[Tensor, " new"]]:
    """Mean and standard deviation of f at new inputs, given q(f) at the old ones."""
    mean, precision = GaussianFull().to_mean_precision(natural)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    gain = torch.linalg.solve(kernel(x, x) + _jitter(x, jitter), kernel(x, new)).mT
    prior = kernel(new, new).diagonal()
    explained = (gain * kernel(new, x)).sum(-1) - ((gain @ covariance) * gain).sum(-1)
    return gain @ mean, (prior - explained).clamp(min=0).sqrt()


def _jitter(x: Inputs, size: float) -> Float[Tensor, "examples examples"]:
    """A little on the diagonal: kernel matrices are singular but for rounding."""
    return size * torch.eye(len(x)).to(x)
