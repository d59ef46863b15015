"""The learning rule against conjugate posteriors, mirror descent, Newton's method and gradient descent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import sklearn.linear_model
import torch
import torch.distributions as D
from torch import Tensor
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument
from bayesrule.expfam import (
    FAMILIES,
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
from bayesrule.random import FromGenerator

DOUBLE = torch.zeros((), dtype=torch.float64)
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)


def member(family: ExponentialFamily, seed: int) -> Natural:
    return family.random_natural(FromGenerator(torch.Generator().manual_seed(seed)), DOUBLE, dim=3)


def one_step(family: ExponentialFamily, natural: Natural, gradient: Natural, step_size: float) -> Natural:
    return learning_rule.step({"q": family}, {"q": natural}, {"q": gradient}, step_size)["q"]


def assert_same(got: Natural, wanted: Natural, tolerance: float) -> None:
    assert_close(got.blocks, wanted.blocks, rtol=tolerance, atol=tolerance)


@pytest.fixture
def regression() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 3))
    return torch.as_tensor(inputs), torch.as_tensor(inputs @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=20))


# --- conjugate models: one step with ρ = 1 is Bayes' rule (Eq. 54) ------------------------------------------------


def posterior_by_formula(x: Tensor, y: Tensor, noise_precision: float, prior_precision: float) -> tuple[Tensor, Tensor]:
    X, Y = x.numpy(), y.numpy()
    precision = noise_precision * X.T @ X + prior_precision * np.eye(3)
    return torch.as_tensor(np.linalg.solve(precision, noise_precision * X.T @ Y)), torch.as_tensor(precision)


def test_linear_regression_in_one_step(regression: tuple[Tensor, Tensor]) -> None:
    x, y = regression
    family, start = GaussianFull(), member(GaussianFull(), seed=1)

    def of_mean_and_covariance(mean: Tensor, covariance: Tensor) -> Tensor:
        """E_q[−log p(y, θ)] with noise precision 4 and prior precision 0.7, up to a constant."""
        misfit = (y - x @ mean).square().sum() + torch.trace(x @ covariance @ x.mT)
        return 0.5 * 4.0 * misfit + 0.5 * 0.7 * (mean.square().sum() + torch.trace(covariance))

    def of_expectation(mu: Expectation) -> Tensor:
        return of_mean_and_covariance(mu["linear"], mu["quadratic"] - torch.outer(mu["linear"], mu["linear"]))

    def of_natural(natural: Natural) -> Tensor:
        mean, precision = family.to_mean_precision(natural)
        return of_mean_and_covariance(mean, torch.linalg.inv(precision))

    for gradient in (
        gradient_in_expectation(family, of_expectation, start),
        natural_gradient(family, of_natural, start),
    ):
        got = family.to_mean_precision(family.check(one_step(family, start, gradient, 1.0)))
        assert_close(got, posterior_by_formula(x, y, 4.0, 0.7), rtol=1e-10, atol=1e-10)


def test_ridge_regression(regression: tuple[Tensor, Tensor]) -> None:
    """Sec. 1.3.3: the expected loss is linear in μ, and its coefficients (Eq. 14) hold the solution."""
    x, y = regression

    def expected_loss(mu: Expectation) -> Tensor:
        return -y @ x @ mu["linear"] + 0.5 * torch.trace((x.mT @ x + 2.0 * torch.eye(3)) @ mu["quadratic"])

    start = member(GaussianFull(), seed=2)
    gradient = gradient_in_expectation(GaussianFull(), expected_loss, start)
    assert_same(gradient, Natural(linear=-x.mT @ y, quadratic=0.5 * (x.mT @ x + 2.0 * torch.eye(3))), 1e-12)
    mean, _ = GaussianFull().to_mean_precision(one_step(GaussianFull(), start, gradient, 1.0))
    ridge = sklearn.linear_model.Ridge(alpha=2.0, fit_intercept=False).fit(x.numpy(), y.numpy())
    assert_close(mean, torch.as_tensor(ridge.coef_), rtol=1e-10, atol=1e-10)


def gamma_log_moments(shape: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    return torch.digamma(shape) - rate.log(), shape / rate


def test_poisson_rate_in_one_step_from_the_usual_parameters() -> None:
    counts, prior = torch.tensor([3.0, 0.0, 7.0, 2.0]).double(), D.Gamma(DOUBLE + 2.0, DOUBLE + 0.5)

    def expected_loss(natural: Natural) -> Tensor:
        shape, rate = Gamma().to_shape_rate(natural)
        expected_log, mean = gamma_log_moments(shape, rate)
        log_likelihood = (counts * expected_log - mean - torch.lgamma(counts + 1)).sum()
        log_prior = (prior.concentration - 1) * expected_log - prior.rate * mean
        return -(log_likelihood + log_prior)

    start = Gamma().from_shape_rate(DOUBLE + 0.3, DOUBLE + 9.0)
    posterior = one_step(Gamma(), start, natural_gradient(Gamma(), expected_loss, start), 1.0)
    assert_close(Gamma().to_shape_rate(posterior), (DOUBLE + 2.0 + 12.0, DOUBLE + 0.5 + 4.0), rtol=1e-10, atol=1e-10)


def test_noise_precision_in_one_step() -> None:
    """y ~ N(0, 1/τ) and τ ~ Gamma(6, 6): the posterior is Gamma(6 + N/2, 6 + Σy²/2)."""
    y = torch.tensor([0.5, -1.5, 2.0]).double()

    def expected_loss(mu: Expectation) -> Tensor:
        log_likelihood = (0.5 * mu["log"] - 0.5 * mu["linear"] * y.square()).sum()
        return -(log_likelihood + 5 * mu["log"] - 6 * mu["linear"])

    start = member(Gamma(), seed=3)
    posterior = one_step(Gamma(), start, gradient_in_expectation(Gamma(), expected_loss, start), 1.0)
    assert_close(Gamma().to_shape_rate(posterior), (DOUBLE + 7.5, DOUBLE + 9.25), rtol=1e-12, atol=1e-12)


def test_independent_signs_in_one_step() -> None:
    """ℓ(θ) = −⟨b, θ⟩ on {−1, +1}³: the posterior by enumeration."""
    b = torch.tensor([0.4, -1.0, 2.0]).double()
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 3)
    marginals = (corners > 0).double().mT @ torch.softmax(corners @ b, dim=0)
    start = member(Bernoulli(), seed=4)
    gradient = gradient_in_expectation(Bernoulli(), lambda mu: -(b * mu["linear"]).sum(), start)
    posterior = Bernoulli().to_probability(one_step(Bernoulli(), start, gradient, 1.0))
    assert_close(posterior, marginals, rtol=1e-12, atol=1e-12)


# --- the rule itself ----------------------------------------------------------------------------------------------


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
        GaussianFixed(torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 3.0]]).double()),
        3,
        lambda x: D.MultivariateNormal(
            x, precision_matrix=torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 3.0]]).double()
        ),
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


def test_a_tree_of_two_families_is_damped_variational_message_passing(regression: tuple[Tensor, Tensor]) -> None:
    """Sec. 5.3, both nodes at once with ρ = 0.6, against the conjugate updates written in NumPy."""
    x, y = regression
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
    family, noise = GaussianFull(), FromGenerator(torch.Generator().manual_seed(11))
    batch = family.random_natural(noise, DOUBLE, (4,), dim=2)

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


# --- classical algorithms by the delta method ---------------------------------------------------------------------


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


def test_newtons_method_on_logistic_regression(regression: tuple[Tensor, Tensor]) -> None:
    """Eq. 8 with ρ = 1: every iterate, against derivatives written in NumPy."""
    x, labels = regression[0], regression[1].sign()
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


def test_gradient_descent(regression: tuple[Tensor, Tensor]) -> None:
    """Eq. 7 and Eq. 35: with S = I the iterates are those of torch.optim.SGD, otherwise preconditioned by S⁻¹."""
    loss = logistic_loss(regression[0], regression[1].sign())
    theta = torch.ones(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.05)
    precision = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 3.0]]).double()
    plain, scaled = GaussianFixed(torch.eye(3).double()), GaussianFixed(precision)
    q, r, mean = plain.from_mean(theta.detach()), scaled.from_mean(theta.detach()), theta.detach().clone()
    for _ in range(10):
        q = one_step(plain, q, gradient_in_expectation(plain, lambda mu: loss(mu["linear"]), q), 0.05)
        r = one_step(scaled, r, gradient_in_expectation(scaled, lambda mu: loss(mu["linear"]), r), 0.05)
        optimizer.zero_grad()
        loss(theta).backward()
        optimizer.step()
        mean = mean - 0.05 * torch.linalg.inv(precision) @ torch.func.grad(loss)(mean)
        assert_close(plain.to_mean(q), theta.detach(), rtol=1e-12, atol=1e-12)
        assert_close(scaled.to_mean(r), mean, rtol=1e-12, atol=1e-12)
