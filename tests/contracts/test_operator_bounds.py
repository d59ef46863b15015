"""Matrix normal plus a diagonal: the bound, the exact determinant, and gradients at the start of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from dense_oracle import dense
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bayesrule.posteriors import (
    ClippedLowRankCovariance,
    DiagonalCovariance,
    EigenKroneckerCovariance,
    KTiedCovariance,
    MatrixNormalCovariance,
    MatrixNormalDiagonal,
    MatrixNormalFreeDiagonalCovariance,
    MatrixNormalKroneckerDiagonalCovariance,
)

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**31)
scales = st.floats(-4, 4)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix_normal(seed: int, fan_in: int, fan_out: int, log_scale: float) -> MatrixNormalCovariance:
    """Correlated factors: triangular, with a diagonal between one half and a few times the scale."""

    def root(size: int) -> Tensor:
        return random(seed + size, size, size).tril(-1) + random(seed, size).abs().add(0.5).diag()

    return MatrixNormalCovariance(root(fan_in) * float(np.exp(log_scale)), root(fan_out))


def logdet(matrix: np.ndarray) -> float:
    return float(np.linalg.slogdet(matrix)[1])


@given(seeds, sizes, sizes, scales)
def test_free_diagonal_logdet_lies_between_its_terms_and_the_truth(
    seed: int, fan_in: int, fan_out: int, log_scale: float
) -> None:
    kronecker = matrix_normal(seed, fan_in, fan_out, log_scale)
    free = DiagonalCovariance(random(seed + 9, fan_in, fan_out).exp())
    operator = MatrixNormalFreeDiagonalCovariance(kronecker, free)
    bound, slack = operator.logdet().item(), 1e-9 * fan_in * fan_out
    assert bound <= logdet(dense(operator)) + slack
    assert bound >= max(logdet(dense(kronecker)), logdet(dense(free))) - slack


@given(seeds, sizes, sizes, scales)
def test_free_diagonal_logdet_is_exact_where_the_terms_are_proportional(
    seed: int, fan_in: int, fan_out: int, log_scale: float
) -> None:
    std = random(seed, fan_in, 1).exp() @ random(seed + 1, fan_out, 1).exp().mT
    roots = random(seed, fan_in).exp().diag(), random(seed + 1, fan_out).exp().diag()
    kronecker = MatrixNormalCovariance(roots[0] * float(np.exp(log_scale)), roots[1])
    operator = MatrixNormalFreeDiagonalCovariance(kronecker, DiagonalCovariance(std))
    assert operator.logdet().item() == pytest.approx(logdet(dense(operator)), rel=1e-9, abs=1e-9)


@given(seeds, sizes, sizes, scales)
def test_kronecker_diagonal_logdet_is_exact(seed: int, fan_in: int, fan_out: int, log_scale: float) -> None:
    scale = KTiedCovariance(random(seed + 5, fan_in, 1).exp(), random(seed + 6, fan_out, 1).exp())
    operator = MatrixNormalKroneckerDiagonalCovariance(matrix_normal(seed, fan_in, fan_out, log_scale), scale)
    assert operator.logdet().item() == pytest.approx(logdet(dense(operator)), rel=1e-9, abs=1e-9)


def at_the_start(shape: tuple[int, int]) -> tuple[MatrixNormalDiagonal, dict[str, Tensor]]:
    """All eigenvalues of both pencils coincide there."""
    family = MatrixNormalDiagonal("kronecker", init_std=0.5)
    return family, {key: value.requires_grad_() for key, value in family.init(random(0, *shape)).items()}


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (4, 6)])
def test_kronecker_diagonal_logdet_has_its_gradient_where_eigenvalues_coincide(shape: tuple[int, int]) -> None:
    family, parameters = at_the_start(shape)
    gradients = torch.autograd.grad(family.build(parameters).covariance.logdet(), list(parameters.values())[1:])
    # Each log-scale moves the variance of its term, half of the whole, in one row or column.
    fan_in, fan_out = shape
    for gradient, entries in zip(gradients, (fan_out, fan_in, fan_out, fan_in), strict=True):
        diagonal = gradient.diagonal() if gradient.shape[-1] > 1 else gradient.squeeze(-1)
        torch.testing.assert_close(diagonal, torch.full_like(diagonal, float(entries)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1), (5, 3)])
def test_kronecker_diagonal_density_has_its_gradients_where_eigenvalues_coincide(shape: tuple[int, int]) -> None:
    family, parameters = at_the_start(shape)
    value = random(1, *shape)

    def log_prob(*free: Tensor) -> Tensor:
        return family.build(dict(zip(parameters, free, strict=True))).log_prob(value)

    def dense_log_prob(*free: Tensor) -> Tensor:
        posterior = family.build(dict(zip(parameters, free, strict=True)))
        covariance = posterior.covariance.dense()
        return torch.distributions.MultivariateNormal(posterior.mean.flatten(), covariance).log_prob(value.flatten())

    free = tuple(parameters.values())
    wanted = torch.autograd.grad(dense_log_prob(*free), free)
    for got, want in zip(torch.autograd.grad(log_prob(*free), free), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1), (4, 3)])
def test_kronecker_diagonal_solve_is_twice_differentiable_where_eigenvalues_coincide(shape: tuple[int, int]) -> None:
    family, parameters = at_the_start(shape)
    x = random(1, *shape).requires_grad_()

    def solve(x: Tensor, *free: Tensor) -> Tensor:
        return family.build(dict(zip(parameters, free, strict=True))).covariance.solve(x)

    arguments = (x, *parameters.values())
    assert torch.autograd.gradcheck(solve, arguments)
    assert torch.autograd.gradgradcheck(solve, arguments)


def test_clipping_counts_the_entries_below_the_floor() -> None:
    std = random(3, 6, 4).exp()
    operator = ClippedLowRankCovariance.truncate(std, rank=2, floor=0.3)
    left, singular, right = np.linalg.svd(std.numpy())
    truncated = (left[:, :2] * singular[:2]) @ right[:2]
    assert 0 < operator.clipped == (truncated < 0.3).sum()
    np.testing.assert_allclose(operator.std.numpy(), np.maximum(truncated, 0.3), rtol=1e-12)


@given(seeds, sizes, sizes)
def test_rank_one_truncation_of_positive_deviations_clips_nothing(seed: int, fan_in: int, fan_out: int) -> None:
    std = random(seed, fan_in, fan_out).exp()
    assert ClippedLowRankCovariance.truncate(std, rank=1, floor=1e-12).clipped == 0


@given(seeds, sizes, sizes, st.floats(1e-3, 10))
def test_eigen_kronecker_damps_exactly_and_inverts(seed: int, fan_in: int, fan_out: int, damping: float) -> None:
    factors = [root @ root.mT for root in (random(seed, fan_in, fan_in), random(seed + 1, fan_out, fan_out))]
    curvature = EigenKroneckerCovariance.from_factors(*factors, damping=damping)
    damped = np.kron(*(factor.numpy() for factor in factors)) + damping * np.eye(fan_in * fan_out)
    np.testing.assert_allclose(curvature.dense().numpy(), damped, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(curvature.inverse().dense().numpy() @ damped, np.eye(len(damped)), atol=1e-9)
