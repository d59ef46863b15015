"""Matrix normal posteriors of 1024 × 1024 weights in single precision, against double precision."""

from __future__ import annotations

import pytest
import torch

import bayesrule as br
from bayesrule.posteriors import Family, GaussianPosterior
from bayesrule.priors import Prior, kl_divergence

SIZE = 1024
FAMILIES: list[Family] = [br.MatrixNormal(), br.MatrixNormalDiagonal("free"), br.MatrixNormalDiagonal("kronecker")]


def trained_like(family: Family, dtype: torch.dtype, size: int = SIZE) -> dict[str, torch.Tensor]:
    """Parameters as after training: scales over five orders of magnitude, correlated rows, many means near zero."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    mean = 0.05 * normal(size, size) * (normal(size, size) > 1.5)
    parameters = family.init(mean)
    for name, value in parameters.items():
        if name.endswith("log_cholesky"):
            value += torch.diag(1.5 * normal(size)) + 0.02 * normal(size, size).tril(-1)
        elif name.endswith("log_std"):
            value += normal(*value.shape)
    return {name: value.to(dtype).requires_grad_() for name, value in parameters.items()}


def value_and_gradients(
    family: Family, prior: Prior, dtype: torch.dtype, size: int
) -> tuple[float, dict[str, torch.Tensor]]:
    parameters = trained_like(family, dtype, size)
    posterior = family.build(parameters, event_dim=2)
    assert isinstance(posterior, GaussianPosterior)
    kl = kl_divergence(posterior, prior)
    kl.backward()
    return kl.item(), {name: value.grad.double() for name, value in parameters.items() if value.grad is not None}


def check(family: Family, prior: Prior, size: int = SIZE) -> None:
    """Rounding of 6e-8, times what cancels: at an ARD optimum trace and log det agree to two or three digits.

    Eigenvalues are no exception. Taken in single precision, those of ``D^{-½}AAᵀD^{-½}`` below the rounding of the
    largest would be lost, and the gradient of ``MatrixNormalDiagonal("kronecker")`` wrong by a tenth.
    """
    single, gradients = value_and_gradients(family, prior, torch.float32, size)
    double, exact = value_and_gradients(family, prior, torch.float64, size)
    assert single == pytest.approx(double, rel=1e-5)
    assert len(gradients) == len(exact) > 2
    for name, gradient in gradients.items():
        error = torch.linalg.vector_norm(gradient - exact[name]) / torch.linalg.vector_norm(exact[name])
        assert error < 1e-4, name


def test_the_matrix_normal_under_ard() -> None:
    check(br.MatrixNormal(), br.ARD())


def test_the_kronecker_diagonal_under_ard() -> None:
    check(br.MatrixNormalDiagonal("kronecker"), br.ARD(), size=256)


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
