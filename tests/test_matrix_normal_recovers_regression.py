"""Multi-output linear regression has a matrix-normal posterior; variational inference must find it.

For ``Y = XW + noise`` with noise precision β and prior precisions α_i that are the same for all outputs, the posterior
is ``MN(M, U, I)`` with ``U = (βXᵀX + diag α)⁻¹`` over inputs and ``M = βUXᵀY``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesrule.posteriors import Diagonal, Family, Full, GaussianPosterior, MatrixNormal
from bayesrule.priors import Normal, kl_divergence

INPUTS, OUTPUTS, EXAMPLES = 6, 4, 200
NOISE_PRECISION = 4.0


@dataclass(frozen=True)
class Regression:
    """A data set with strongly correlated inputs, and its exact posterior."""

    x: Tensor
    y: Tensor
    prior_precision: Tensor

    @property
    def precision(self) -> Tensor:
        """``βXᵀX + diag α``, the same for every output."""
        return NOISE_PRECISION * self.x.mT @ self.x + torch.diag(self.prior_precision)

    @property
    def covariance(self) -> Tensor:
        """``U ⊗ I`` over the entries of W in row-major order."""
        return torch.linalg.inv(torch.kron(self.precision, torch.eye(OUTPUTS, dtype=torch.float64)))

    @property
    def mean(self) -> Tensor:
        return torch.linalg.solve(self.precision, NOISE_PRECISION * self.x.mT @ self.y)

    @property
    def log_evidence(self) -> float:
        """``log p(Y)``: every output is normal with covariance ``I/β + X diag(1/α) Xᵀ``."""
        covariance = np.eye(EXAMPLES) / NOISE_PRECISION + (self.x / self.prior_precision @ self.x.mT).numpy()
        return float(stats.multivariate_normal(np.zeros(EXAMPLES), covariance).logpdf(self.y.numpy().T).sum())

    def expected_log_likelihood(self, posterior: GaussianPosterior) -> Tensor:
        """``E_q log p(Y | W)``, from ``E_q‖Y − XW‖² = ‖Y − XM‖² + tr((XᵀX ⊗ I) Σ)``."""
        gram = torch.kron(self.x.mT @ self.x, torch.eye(OUTPUTS, dtype=torch.float64))
        squares = (self.y - self.x @ posterior.mean).square().sum() + (gram * posterior.covariance.dense()).sum()
        normaliser = self.y.numel() * np.log(NOISE_PRECISION / (2 * np.pi))
        return 0.5 * (normaliser - NOISE_PRECISION * squares)


@functools.cache
def regression() -> Regression:
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x = normal(EXAMPLES, 1) + 0.5 * normal(EXAMPLES, INPUTS)
    y = x @ normal(INPUTS, OUTPUTS) + normal(EXAMPLES, OUTPUTS) / NOISE_PRECISION**0.5
    return Regression(x, y, torch.linspace(0.5, 3.0, INPUTS, dtype=torch.float64))


@functools.cache
def fit(family: Family) -> tuple[GaussianPosterior, float]:
    """The posterior that maximises the ELBO, and the ELBO there."""
    data = regression()
    prior = Normal(data.prior_precision.rsqrt()[:, None])
    start = family.init(torch.zeros(INPUTS, OUTPUTS, dtype=torch.float64), generator=torch.Generator().manual_seed(0))
    parameters = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.LBFGS(
        list(parameters.values()), max_iter=1000, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def negative_elbo() -> Tensor:
        optimizer.zero_grad()
        posterior = family.build(parameters, event_dim=2)
        assert isinstance(posterior, GaussianPosterior)
        loss = kl_divergence(posterior, prior) - data.expected_log_likelihood(posterior)
        loss.backward()
        return loss

    optimizer.step(negative_elbo)
    elbo = -negative_elbo().item()
    found = family.build({name: value.detach() for name, value in parameters.items()}, event_dim=2)
    assert isinstance(found, GaussianPosterior)
    return found, elbo


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - exact) / torch.linalg.vector_norm(exact))


def test_the_inputs_are_strongly_correlated() -> None:
    correlation = torch.corrcoef(regression().x.mT)
    assert correlation[~torch.eye(INPUTS, dtype=torch.bool)].min() > 0.7


@pytest.mark.parametrize("family", [MatrixNormal(), Full()], ids=str)
def test_families_that_hold_the_posterior_recover_it(family: Family) -> None:
    found, elbo = fit(family)
    assert relative_error(found.mean, regression().mean) < 1e-6
    assert relative_error(found.covariance.dense(), regression().covariance) < 1e-5
    assert elbo == pytest.approx(regression().log_evidence, rel=1e-10)


def test_mean_field_recovers_only_the_mean() -> None:
    found, elbo = fit(Diagonal())
    assert relative_error(found.mean, regression().mean) < 1e-6
    assert relative_error(found.covariance.dense(), regression().covariance) > 0.2
    assert elbo < regression().log_evidence - 1


def test_mean_field_variances_are_those_given_all_other_entries() -> None:
    conditional = regression().precision.diagonal().reciprocal()[:, None].expand(INPUTS, OUTPUTS)
    torch.testing.assert_close(fit(Diagonal())[0].variance, conditional, rtol=1e-6, atol=0)
