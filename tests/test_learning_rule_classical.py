"""Classical algorithms as the learning rule with the delta method: Newton's method and gradient descent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from bayesrule.expfam import Expectation, GaussianFixed, GaussianFull, gradient_in_expectation
from learning_rule_problems import PRECISION, one_step, regression


def logistic_loss(x: Tensor, labels: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda theta: torch.nn.functional.softplus(-labels * (x @ theta)).sum() + 0.5 * theta.square().sum()


def second_order_delta(loss: Callable[[Tensor], Tensor], at: Tensor) -> Callable[[Expectation], Tensor]:
    """E_q[ℓ] ≈ ℓ(m) + ½ tr(∇²ℓ(m_t) Σ): gradient and Hessian at the mean (Eqs. 13, 65 and 66)."""
    hessian = torch.autograd.functional.hessian(loss, at)

    def expected_loss(mu: Expectation) -> Tensor:
        covariance = mu["quadratic"] - torch.outer(mu["linear"], mu["linear"])
        return loss(mu["linear"]) + 0.5 * torch.trace(hessian @ covariance)

    return expected_loss


def test_newtons_method_on_a_quadratic() -> None:
    matrix, vector = torch.tensor([[3.0, 1.0], [1.0, 2.0]]).double(), torch.tensor([1.0, -4.0]).double()
    family = GaussianFull()
    q = family.from_mean_precision(torch.tensor([5.0, 5.0]).double(), torch.eye(2).double())

    def loss(theta: Tensor) -> Tensor:
        return 0.5 * theta @ matrix @ theta - vector @ theta

    for _ in range(2):
        expected_loss = second_order_delta(loss, family.to_mean_precision(q)[0])
        q = one_step(family, q, gradient_in_expectation(family, expected_loss, q), 1.0)
        assert_close(family.to_mean_precision(q), (torch.linalg.solve(matrix, vector), matrix), rtol=1e-12, atol=1e-12)


def test_newtons_method_on_logistic_regression() -> None:
    """Eq. 8 with ρ = 1: every iterate, against derivatives written in NumPy."""
    x, y = regression()
    labels = y.sign()
    loss, family, X, Y = logistic_loss(x, labels), GaussianFull(), x.numpy(), labels.numpy()
    q = family.from_mean_precision(torch.zeros(3).double(), torch.eye(3).double())
    theta = np.zeros(3)
    for _ in range(6):
        expected_loss = second_order_delta(loss, family.to_mean_precision(q)[0])
        q = one_step(family, q, gradient_in_expectation(family, expected_loss, q), 1.0)
        probability = 1 / (1 + np.exp(Y * (X @ theta)))
        hessian = X.T @ ((probability * (1 - probability))[:, None] * X) + np.eye(3)
        theta = theta - np.linalg.solve(hessian, -X.T @ (Y * probability) + theta)
        got = family.to_mean_precision(q)
        assert_close(got, (torch.as_tensor(theta), torch.as_tensor(hessian)), rtol=1e-10, atol=1e-10)


def test_gradient_descent() -> None:
    """Eq. 7 and Eq. 35: with S = I the iterates are those of torch.optim.SGD, otherwise preconditioned by S⁻¹."""
    x, y = regression()
    loss = logistic_loss(x, y.sign())
    theta = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.05)
    plain, scaled = GaussianFixed(torch.eye(3).double()), GaussianFixed(PRECISION)
    q, r, mean = plain.from_mean(theta.detach()), scaled.from_mean(theta.detach()), theta.detach().clone()
    for _ in range(10):
        q = one_step(plain, q, gradient_in_expectation(plain, lambda mu: loss(mu["linear"]), q), 0.05)
        r = one_step(scaled, r, gradient_in_expectation(scaled, lambda mu: loss(mu["linear"]), r), 0.05)
        optimizer.zero_grad()
        loss(theta).backward()
        optimizer.step()
        mean = mean - 0.05 * torch.linalg.inv(PRECISION) @ torch.func.grad(loss)(mean)
        assert_close(plain.to_mean(q), theta.detach(), rtol=1e-12, atol=1e-12)
        assert_close(scaled.to_mean(r), mean, rtol=1e-12, atol=1e-12)
