"""Reductions and triangular factors against numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesrule.linalg import (
    bilinear_sum,
    broadcast_sum,
    event_dims,
    joint_norm,
    log_diagonal_cholesky,
    safe_sqrt,
    scaled_identity_log_cholesky,
    sum_of_squares,
    triangular_logdet,
    triangular_moments,
)
from largest_tensor import LargestTensor


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_event_dims_count_from_the_end() -> None:
    assert event_dims(1) == (-1,)
    assert event_dims(3) == (-3, -2, -1)


@pytest.mark.parametrize("event_dim", [1, 2, 3])
def test_sum_of_squares(event_dim: int) -> None:
    x = random(2, 3, 4, 5)
    want = (x.numpy() ** 2).sum(tuple(range(-event_dim, 0)))
    np.testing.assert_allclose(sum_of_squares(x, event_dim).numpy(), want, rtol=1e-12)


def test_sum_of_squares_makes_no_squared_copy_and_has_a_gradient_at_zero() -> None:
    x = random(50, 40)
    with LargestTensor() as cost:
        sum_of_squares(x, 2)
    assert cost.entries == 1
    zero = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(sum_of_squares(zero, 2), zero)
    assert torch.equal(gradient, torch.zeros_like(zero))
    assert torch.autograd.gradcheck(lambda y: sum_of_squares(y, 2), random(2, 3, 4).requires_grad_())


@pytest.mark.parametrize("shape", [(), (4,), (1,), (3, 1), (1, 4), (3, 4), (1, 1), (2, 3, 4), (2, 1, 4), (2, 1, 1)])
def test_broadcast_sum(shape: tuple[int, ...]) -> None:
    values = random(*shape)
    expanded = np.broadcast_to(values.numpy(), (*shape[:-2], 3, 4))
    np.testing.assert_allclose(broadcast_sum(values, (3, 4)).numpy(), expanded.sum((-2, -1)), rtol=1e-12, atol=1e-12)


def test_broadcast_sum_expands_nothing() -> None:
    with LargestTensor() as cost:
        broadcast_sum(random(50, 1), (50, 40))
    assert cost.entries == 50  # the values themselves, made inside the count


@pytest.mark.parametrize(
    "shape", [(), (4,), (3, 1), (1, 4), (3, 4), (1, 1), (2, 3, 4), (2, 3, 1), (2, 1, 4), (2, 1, 1)]
)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_bilinear_sum(shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    rows, columns, weights = random(*batch, 3, 5), random(*batch, 4, 5), random(*shape)
    full = np.broadcast_to(weights.numpy(), (*shape[:-2], 3, 4))
    want = np.einsum("...ir,...ij,...jr->...", rows.numpy(), full, columns.numpy())
    np.testing.assert_allclose(bilinear_sum(rows, weights, columns).numpy(), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("fan_in", "fan_out"), [(1, 1), (1, 4), (3, 1)])
def test_bilinear_sum_of_thin_matrices(fan_in: int, fan_out: int) -> None:
    rows, columns, weights = random(fan_in, 2), random(fan_out, 2), random(fan_in, fan_out)
    want = np.einsum("ir,ij,jr->", rows.numpy(), weights.numpy(), columns.numpy())
    np.testing.assert_allclose(bilinear_sum(rows, weights, columns).numpy(), want, rtol=1e-12, atol=1e-12)


def test_safe_sqrt_has_no_gradient_at_zero() -> None:
    variance = torch.tensor([0.0, 4.0], dtype=torch.float64, requires_grad=True)
    std = safe_sqrt(variance)
    (gradient,) = torch.autograd.grad(std.sum(), variance)
    assert std[1].item() == 2.0
    assert std[0].item() < 1e-150
    assert gradient.tolist() == [0.0, 0.25]


def test_log_diagonal_cholesky_is_lower_with_positive_diagonal() -> None:
    raw = random(2, 4, 4)
    factor = log_diagonal_cholesky(raw).numpy()
    for index in range(2):
        scales = np.diag(np.exp(np.diag(raw[index].numpy())))
        want = scales @ (np.eye(4) + np.tril(raw[index].numpy(), -1))
        np.testing.assert_allclose(factor[index], want, rtol=1e-15)


def test_every_covariance_has_one_unconstrained_matrix() -> None:
    root = random(4, 4)
    covariance = root @ root.mT
    lower = torch.linalg.cholesky(covariance)
    raw = (lower / lower.diagonal()[:, None]).tril(-1) + lower.diagonal().log().diag()
    factor = log_diagonal_cholesky(raw)
    torch.testing.assert_close(factor @ factor.mT, covariance, rtol=1e-12, atol=1e-12)


def test_scaled_identity_has_its_scale() -> None:
    raw = scaled_identity_log_cholesky(3, 0.25, torch.zeros(1, dtype=torch.float64))
    assert raw.dtype == torch.float64
    torch.testing.assert_close(log_diagonal_cholesky(raw), 0.25 * torch.eye(3, dtype=torch.float64), rtol=1e-12, atol=0)


def test_triangular_logdet() -> None:
    factor = log_diagonal_cholesky(random(2, 3, 3))
    want = np.linalg.slogdet(factor.numpy())[1]
    np.testing.assert_allclose(triangular_logdet(factor).numpy(), want, rtol=1e-12)


def test_triangular_moments() -> None:
    factor = log_diagonal_cholesky(random(2, 3, 3))
    squares, logdet = triangular_moments(factor)
    covariance = factor.numpy() @ factor.mT.numpy()
    np.testing.assert_allclose(squares.squeeze(-1).numpy(), np.diagonal(covariance, axis1=-2, axis2=-1), rtol=1e-12)
    np.testing.assert_allclose(logdet.numpy(), np.linalg.slogdet(factor.numpy())[1], rtol=1e-12)


def moments(factor: Tensor) -> Tensor:
    """Of squares and logarithms together, not linear in either."""
    squares, logdet = triangular_moments(factor)
    return squares.square().sum((-2, -1)) * logdet.exp()


@pytest.mark.parametrize("function", [log_diagonal_cholesky, lambda raw: moments(log_diagonal_cholesky(raw))])
def test_triangular_factors_have_two_derivatives(function: Callable[[Tensor], Tensor]) -> None:
    raw = (0.5 * random(2, 3, 3)).requires_grad_()
    assert torch.autograd.gradcheck(function, raw)
    assert torch.autograd.gradgradcheck(function, raw)


def test_triangular_factors_under_vmap() -> None:
    raw = random(4, 2, 3, 3)

    def gradient(one: Tensor) -> Tensor:
        return torch.func.grad(lambda each: moments(log_diagonal_cholesky(each)).sum())(one)

    looped = torch.stack([gradient(one) for one in raw])
    torch.testing.assert_close(torch.func.vmap(gradient)(raw), looped, rtol=1e-12, atol=1e-12)


PIECES = [(5, 3, 4), (5, 1, 4), (5, 2, 4)]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("dim", [-2, -1])
def test_joint_norm(count: int, dim: int) -> None:
    pieces = [random(*shape).transpose(-2, dim).requires_grad_() for shape in PIECES[:count]]
    want = np.linalg.norm(np.concatenate([piece.detach().numpy() for piece in pieces], dim), axis=dim, keepdims=True)
    np.testing.assert_allclose(joint_norm(pieces, dim).detach().numpy(), want, rtol=1e-12)
    assert torch.autograd.gradcheck(lambda *parts: joint_norm(parts, dim), pieces)
    assert torch.autograd.gradgradcheck(lambda *parts: joint_norm(parts, dim), pieces)


def test_joint_norm_has_a_gradient_at_zero() -> None:
    pieces = [torch.zeros(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for gradient in torch.autograd.grad(joint_norm(pieces, -1).sum(), pieces):
        assert torch.equal(gradient, torch.zeros_like(gradient))
