"""Gaussian processes: regression in one step of the rule, classification by damped ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms import bayes_rule
from bayesrule.errors import ShapeMismatch
from bayesrule.expfam import Expectation, GaussianFull, Natural
from bayesrule.inference.examples import Inputs, Targets, check_inputs, paired
from bayesrule.inference.glm import Likelihood, likelihood_factor
from bayesrule.inference.model import Expectations, Factor, Model
from bayesrule.posteriors.family import check_positive

Kernel = Callable[[Float[Tensor, "rows dim"], Float[Tensor, "columns dim"]], Float[Tensor, "rows columns"]]


def squared_exponential(scale: float = 1.0, length: float = 1.0) -> Kernel:
    """k(x, x') = scale² exp(−½|x − x'|²/length²)."""
    check_positive("scale", scale)
    check_positive("length", length)

    def kernel(left: Tensor, right: Tensor) -> Tensor:
        distance = (left.unsqueeze(-2) - right.unsqueeze(-3)).square().sum(-1)
        return scale**2 * torch.exp(-0.5 * distance / length**2)

    return kernel


def gp_prior(covariance: Float[Tensor, "examples examples"]) -> Callable[[Expectation], Tensor]:
    """E_q[log N(f; 0, K)] = −½ tr(K⁻¹E[ffᵀ]) + constant."""
    precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    return lambda mu: -0.5 * (precision * mu["quadratic"]).sum()


def gp_regression(x: Inputs, y: Targets, kernel: Kernel, *, noise_std: float, jitter: float = 1e-9) -> Natural:
    """The posterior of f at the inputs, for `gp_predict`: conjugate, so one step   (Sec. 5.1)."""
    check_positive("noise_std", noise_std)
    x, y = paired(x, y)
    prior = gp_prior(kernel(x, x) + _jitter(x, jitter))

    def expected_loss(mu: Expectation) -> Tensor:
        misfit = y @ y - 2 * y @ mu["linear"] + torch.trace(mu["quadratic"])
        return 0.5 * misfit / noise_std**2 - prior(mu)

    eye = torch.eye(len(x)).to(x)
    return bayes_rule(GaussianFull(), expected_loss, GaussianFull().from_mean_precision(torch.zeros_like(y), eye))


def gp_classification(x: Inputs, y: Targets, kernel: Kernel, likelihood: Likelihood, *, jitter: float = 1e-9) -> Model:
    """The latent function at the inputs as one Gaussian node, a non-conjugate factor for each label."""
    x, y = paired(x, y)
    prior = gp_prior(kernel(x, x) + _jitter(x, jitter))

    def of_node(mu: Expectations) -> Tensor:
        return prior(mu["f"])

    labels = likelihood_factor("f", torch.eye(len(x)).to(x), y, likelihood)
    return Model({"f": GaussianFull()}, (Factor(("f",), of_node), labels))


def gp_predict(
    natural: Natural, x: Inputs, new: Float[Tensor, "new dim"], kernel: Kernel, *, jitter: float = 1e-9
) -> tuple[Float[Tensor, " new"], Float[Tensor, " new"]]:
    """Two vectors, ``(mean, std)`` of f at each new input, given q(f) at the old ones.

    The standard deviation is that of the function, without the observations' noise.

    Args:
        natural: λ of q(f) at the old inputs, from `gp_regression`, or that of the node ``"f"`` of `gp_classification`.
        x: The old inputs.
        new: The new ones.
        kernel: The one that was used before.
        jitter: Likewise.
    """
    check_inputs("x", x)
    check_inputs("new", new)
    if x.shape[-1] != new.shape[-1]:
        raise ShapeMismatch(f"new must have the {x.shape[-1]} columns of x", got=tuple(new.shape))
    if natural["linear"].shape[-1] != len(x):
        raise ShapeMismatch(
            f"This posterior is of a function at {natural['linear'].shape[-1]} inputs", got=f"{len(x)} rows of x",
            remedy="Give the x that it was fitted to.",
        )  # fmt: skip
    x, new = x.to(natural["linear"]), new.to(natural["linear"])
    mean, precision = GaussianFull().to_mean_precision(natural)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    gain = torch.linalg.solve(kernel(x, x) + _jitter(x, jitter), kernel(x, new)).mT
    prior = kernel(new, new).diagonal()
    explained = (gain * kernel(new, x)).sum(-1) - ((gain @ covariance) * gain).sum(-1)
    return gain @ mean, (prior - explained).clamp(min=0).sqrt()


def _jitter(x: Inputs, size: float) -> Float[Tensor, "examples examples"]:
    """A little on the diagonal: kernel matrices are singular but for rounding."""
    return size * torch.eye(len(x)).to(x)
