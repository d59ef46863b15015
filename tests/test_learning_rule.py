"""The learning rule itself: against mirror descent, message passing and the Fisher matrix, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import torch
import torch.distributions as D
from torch import Tensor
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument
from bayesrule.expfam import (
    Bernoulli,
    Expectation,
    ExponentialFamily,
    Gamma,
    GaussianDiagonal,
    GaussianFixed,
    GaussianFull,
    Natural,
    gradient_in_expectation,
    gradients_in_expectation,
    learning_rule,
    natural_gradient,
)
from expfam_members import DOUBLE, assert_same, every_family, member
from learning_rule_problems import PRECISION, gamma_log_moments, one_step, regression


@every_family
def test_equation_3_equals_equation_6(family: ExponentialFamily) -> None:
    natural, coefficients = member(family, seed=5), member(family, seed=6)

    def expected_loss(mu: Expectation) -> Tensor:
        return torch.tanh(0.3 * family.inner(coefficients, mu))

    def objective(mu: Expectation) -> Tensor:
        return expected_loss(mu) - family.entropy(family.to_natural(mu))

    by_equation_3 = natural - 0.3 * gradient_in_expectation(family, objective, natural)
    by_equation_6 = one_step(family, natural, gradient_in_expectation(family, expected_loss, natural), 0.3)
    assert_same(by_equation_6, by_equation_3, 1e-9)


@every_family
def test_natural_gradient_is_the_fisher_preconditioned_gradient(family: ExponentialFamily) -> None:
    """Eq. 4: F(λ)·(natural gradient) = ∇_λ f(λ), with F·v as the derivative of ⟨v, ∇A(λ)⟩."""
    natural = member(family, seed=7)

    def loss(point: Natural) -> Tensor:
        return torch.tanh(family.kl(point, member(family, seed=8)))

    direction = natural_gradient(family, loss, natural)
    fisher_times = torch.func.grad(lambda point: family.inner(direction, family.to_expectation(point)))
    plain = family.space.project(torch.func.grad(loss)(natural))
    assert_close(fisher_times(natural).blocks, plain.blocks, rtol=1e-9, atol=1e-9)


Unconstrained = Callable[[Tensor], D.Distribution]
MIRROR_CASES: list[tuple[ExponentialFamily, int, Unconstrained, Callable[[D.Distribution], dict[str, Tensor]]]] = [
    (
        Gamma(),
        2,
        lambda x: D.Gamma(x[0].exp(), x[1].exp()),
        lambda q: dict(zip(("log", "linear"), gamma_log_moments(q.concentration, q.rate), strict=True)),
    ),
    (
        Bernoulli(),
        3,
        lambda x: D.Independent(D.Bernoulli(logits=x), 1),
        lambda q: {"linear": 2 * q.mean - 1},
    ),
    (
        GaussianDiagonal(),
        6,
        lambda x: D.Independent(D.Normal(x[:3], x[3:].exp()), 1),
        lambda q: {"linear": q.mean, "quadratic": q.mean.square() + q.variance},
    ),
    (
        GaussianFull(),
        12,
        lambda x: D.MultivariateNormal(x[:3], scale_tril=x[3:].view(3, 3).tril(-1) + torch.diag(x[3::4].exp())),
        lambda q: {"linear": q.mean, "quadratic": torch.outer(q.mean, q.mean) + q.covariance_matrix},
    ),
    (
        GaussianFixed(PRECISION),
        3,
        lambda x: D.MultivariateNormal(x, precision_matrix=PRECISION),
        lambda q: {"linear": q.mean},
    ),
]


@pytest.mark.parametrize(
    ("family", "size", "distribution", "moments"), MIRROR_CASES, ids=[type(case[0]).__name__ for case in MIRROR_CASES]
)
def test_a_step_is_mirror_descent(
    family: ExponentialFamily,
    size: int,
    distribution: Unconstrained,
    moments: Callable[[D.Distribution], dict[str, Tensor]],
) -> None:
    """Eq. 22, minimised by BFGS over unconstrained parameters, with torch's own KL divergence."""
    at = torch.linspace(-0.5, 0.7, size, dtype=torch.float64)
    current = distribution(at)
    natural = family.to_natural(Expectation(**moments(current)))
    loss_gradient, step_size = -0.5 * member(family, seed=9), 0.4  # minus: the new λ mixes two points of Ω
    gradient = loss_gradient + natural + family.base.gradient(natural)

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        x = torch.tensor(point, requires_grad=True)
        q = distribution(x)
        linear = sum((gradient[name] * value).sum() for name, value in moments(q).items())
        value = linear + D.kl_divergence(q, current) / step_size
        value.backward()
        return value.item(), x.grad.numpy()

    found = scipy.optimize.minimize(objective, at.numpy(), jac=True, method="BFGS", options={"gtol": 1e-10})
    assert np.abs(objective(found.x)[1]).max() < 1e-6
    wanted = moments(distribution(torch.as_tensor(found.x)))
    got = family.to_expectation(family.check(one_step(family, natural, loss_gradient, step_size)))
    assert_close(got.blocks, wanted, rtol=1e-6, atol=1e-6)


def mean_field_regression(x: Tensor, y: Tensor) -> Callable[[dict[str, Expectation]], Tensor]:
    """E_q[−log p(y, w, τ)] for y ~ N(Xw, 1/τ), w ~ N(0, I/0.7), τ ~ Gamma(6, 6), up to a constant."""

    def expected_loss(mu: dict[str, Expectation]) -> Tensor:
        weights, noise = mu["weights"], mu["noise"]
        misfit = y @ y - 2 * y @ x @ weights["linear"] + torch.trace(x.mT @ x @ weights["quadratic"])
        log_likelihood = 0.5 * len(y) * noise["log"] - 0.5 * noise["linear"] * misfit
        log_prior = -0.5 * 0.7 * torch.trace(weights["quadratic"]) + 5 * noise["log"] - 6 * noise["linear"]
        return -(log_likelihood + log_prior)

    return expected_loss


def test_a_tree_of_two_families_is_damped_variational_message_passing() -> None:
    """Sec. 5.3, both nodes at once with ρ = 0.6, against the conjugate updates written in NumPy."""
    x, y = regression()
    families = {"weights": GaussianFull(), "noise": Gamma()}
    naturals = {name: member(family, seed=10) for name, family in families.items()}
    X, Y, damp = x.numpy(), y.numpy(), 0.6
    mean, precision = (value.numpy() for value in GaussianFull().to_mean_precision(naturals["weights"]))
    shape, rate = (value.item() for value in Gamma().to_shape_rate(naturals["noise"]))
    linear = precision @ mean
    for _ in range(5):
        gradients = gradients_in_expectation(families, mean_field_regression(x, y), naturals)
        naturals = learning_rule.step(families, naturals, gradients, damp)
        mean, covariance, noise = np.linalg.solve(precision, linear), np.linalg.inv(precision), shape / rate
        misfit = np.sum((Y - X @ mean) ** 2) + np.trace(X @ covariance @ X.T)
        linear = (1 - damp) * linear + damp * noise * X.T @ Y
        precision = (1 - damp) * precision + damp * (noise * X.T @ X + 0.7 * np.eye(3))
        shape, rate = (1 - damp) * shape + damp * (6 + len(Y) / 2), (1 - damp) * rate + damp * (6 + misfit / 2)
        wanted = {"linear": torch.as_tensor(linear), "quadratic": torch.as_tensor(-0.5 * precision)}
        assert_close(naturals["weights"].blocks, wanted, rtol=1e-9, atol=1e-9)
        assert_close(Gamma().to_shape_rate(naturals["noise"]), (DOUBLE + shape, DOUBLE + rate), rtol=1e-9, atol=1e-9)


def test_each_member_of_a_batch_takes_its_own_step() -> None:
    family, batch = GaussianFull(), member(GaussianFull(), seed=11, batch=(4,), dim=2)

    def expected_loss(mu: Expectation) -> Tensor:
        return (mu["linear"].square().sum(-1) + mu["quadratic"].square().sum((-2, -1))).sin()

    together = one_step(family, batch, gradient_in_expectation(family, expected_loss, batch), 0.1)
    for i in range(4):
        single = batch.map(lambda value, i=i: value[i])
        alone = one_step(family, single, gradient_in_expectation(family, expected_loss, single), 0.1)
        assert_same(together.map(lambda value, i=i: value[i]), alone, 1e-12)


def test_the_gradient_in_a_symmetric_block_is_symmetric() -> None:
    natural = member(GaussianFull(), seed=12)
    gradient = gradient_in_expectation(GaussianFull(), lambda mu: mu["quadratic"][0, 1], natural)
    assert_close(gradient["quadratic"], torch.tensor([[0, 0.5, 0], [0.5, 0, 0], [0, 0, 0]]).double())


def test_a_step_changes_nothing_it_was_given() -> None:
    natural, gradient = member(GaussianFull(), seed=13), member(GaussianFull(), seed=14)
    before = natural.map(torch.clone), gradient.map(torch.clone)
    one_step(GaussianFull(), natural, gradient, 0.5)
    assert_same(natural, before[0], 0.0)
    assert_same(gradient, before[1], 0.0)


def test_errors_name_the_argument() -> None:
    natural = member(Gamma(), seed=15)
    for step_size in (0.0, -0.1, float("nan")):
        with pytest.raises(InvalidArgument, match="step size"):
            one_step(Gamma(), natural, natural, step_size)
    with pytest.raises(InvalidArgument, match="names"):
        learning_rule.step({"q": Gamma()}, {"q": natural}, {"r": natural}, 0.5)
    with pytest.raises(TypeError):
        one_step(Gamma(), natural, Gamma().to_expectation(natural), 0.5)
