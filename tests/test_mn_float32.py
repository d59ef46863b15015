"""Matrix normal posteriors of 1024 × 1024 weights in single precision, against double precision."""

from __future__ import annotations

import pytest
import torch

import bayesrule as br
from bayesrule.posteriors import Family, GaussianPosterior
from bayesrule.priors import Prior, kl_divergence

SIZE = 1024
FAMILIES: list[Family] = [br.MatrixNormal(), br.MatrixNormalDiagonal("free"), br.MatrixNormalDiagonal("kronecker")]


def trained_like(family: Family, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Parameters as after training: scales over five orders of magnitude, correlated rows, many means near zero."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mean = 0.05 * normal(SIZE, SIZE) * (normal(SIZE, SIZE) > 1.5)
    parameters = family.init(mean)
    for name, value in parameters.items():
        if name.endswith("log_cholesky"):
            value += torch.diag(1.5 * normal(SIZE)) + 0.02 * normal(SIZE, SIZE).tril(-1)
        elif name.endswith("log_std"):
            value += normal(*value.shape)
    return {name: value.to(dtype).requires_grad_() for name, value in parameters.items()}


def value_and_gradients(family: Family, prior: Prior, dtype: torch.dtype) -> tuple[float, dict[str, torch.Tensor]]:
    parameters = trained_like(family, dtype)
    posterior = family.build(parameters, event_dim=2)
    assert isinstance(posterior, GaussianPosterior)
    kl = kl_divergence(posterior, prior)
    kl.backward()
    return kl.item(), {name: value.grad.double() for name, value in parameters.items() if value.grad is not None}


def check(family: Family, prior: Prior) -> None:
    single, gradients = value_and_gradients(family, prior, torch.float32)
    double, exact = value_and_gradients(family, prior, torch.float64)
    # Eigenvalues below the rounding of the largest one are lost, and with them a few nats of a million.
    by_eigenvalues = family == br.MatrixNormalDiagonal("kronecker")
    assert single == pytest.approx(double, rel=5e-4 if by_eigenvalues else 2e-5)
    assert len(gradients) == len(exact) > 2
    for name, gradient in gradients.items():
        error = torch.linalg.vector_norm(gradient - exact[name]) / torch.linalg.vector_norm(exact[name])
        assert error < (1e-2 if by_eigenvalues else 1e-3), name


def test_the_matrix_normal_under_ard() -> None:
    check(br.MatrixNormal(), br.ARD())


@pytest.mark.slow
@pytest.mark.parametrize("prior", [br.ARD(), br.GroupARD("both", iterations=5), br.LearnedNormal()], ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_kl_and_gradients_of_every_family(family: Family, prior: Prior) -> None:
    check(family, prior)


def test_local_noise() -> None:
    layer = torch.nn.Linear(SIZE, SIZE, bias=False)
    op = br.contractions.Linear.of(layer)
    variances = []
    for dtype in (torch.float32, torch.float64):
        family = br.MatrixNormal()
        posterior = family.build(trained_like(family, dtype))
        x = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
        (noise,) = posterior.project(op, x)
        variances.append(noise.variance(x @ posterior.mean, op).double().detach())
    torch.testing.assert_close(*variances, rtol=1e-4, atol=0)
