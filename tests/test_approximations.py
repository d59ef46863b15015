"""Where gradients are taken, and what stands for the Hessian: each against its definition, and in combination."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.experiments.blr.problems import Size, logistic
from bayesrule.expfam import (
    AbsoluteHessian,
    Bernoulli,
    Curvature,
    Delta,
    Expectation,
    FixedWeightsMixture,
    GaussHermite,
    GaussianDiagonal,
    GaussianFull,
    GaussNewton,
    Hessian,
    Loss,
    MonteCarlo,
    Natural,
    Price,
    SquaredGradient,
    TrueFisher,
    concrete_gradient,
    gaussian_gradient,
    gradient_in_expectation,
    mixture_gradient,
    of_function,
    straight_through_gradient,
)
from bayesrule.random import Replay
from expfam_members import FAILURE_RATE, assert_same, generator, member

THETA = torch.tensor([0.3, -0.8, 0.5]).double()
NONE = torch.zeros(3).double()
PROBLEM = logistic(Size(20, 1, 0))
X, Y = PROBLEM.x.numpy(), PROBLEM.y.numpy()
P = 1 / (1 + np.exp(-X @ THETA.numpy()))


def as_tensor(value: np.ndarray) -> Tensor:
    return torch.as_tensor(value)


@pytest.mark.parametrize(
    ("curvature", "wanted"),
    [
        (Hessian(), 2.0 * X[:10].T @ ((P * (1 - P))[:10, None] * X[:10]) + np.eye(3)),
        (TrueFisher(), 2.0 * X[:10].T @ ((P * (1 - P))[:10, None] * X[:10]) + np.eye(3)),
        (GaussNewton(), 2.0 * X[:10].T @ ((P - Y)[:10, None] ** 2 * X[:10]) + np.eye(3)),
    ],
    ids=["hessian", "fisher", "gauss-newton"],
)
def test_curvatures_of_a_scaled_minibatch(curvature: Curvature, wanted: np.ndarray) -> None:
    assert_close(curvature(PROBLEM.loss(slice(10)), THETA, NONE), as_tensor(wanted), rtol=1e-12, atol=1e-12)


def test_squared_gradient_and_absolute_hessian() -> None:
    loss = PROBLEM.loss()
    gradient = as_tensor(X.T @ (P - Y)) + THETA
    assert_close(SquaredGradient()(loss, THETA, NONE), torch.outer(gradient, gradient), rtol=1e-12, atol=1e-12)
    saddle = Loss(
        lambda t: torch.stack([t[0] ** 2 * 0.5 - 2 * t[1] ** 2, t[0] * t[1]]), lambda t: t.square().sum(), 3.0
    )
    got = AbsoluteHessian()(saddle, THETA[:2], NONE[:2])
    assert_close(got, torch.diag(torch.tensor([3.0 * 1 + 2, 3.0 * 4 + 2]).double()))


def test_the_true_fisher_needs_a_model() -> None:
    with pytest.raises(InvalidArgument, match="OutputModel"):
        TrueFisher()(of_function(lambda t: t.sum()), THETA, NONE)


@pytest.mark.parametrize("family", [GaussianDiagonal(), GaussianFull()], ids=["diagonal", "full"])
@pytest.mark.parametrize("curvature", [Hessian(), Price()], ids=["hessian", "price"])
def test_quadrature_gives_the_exact_gradient_in_the_expectation(
    family: GaussianDiagonal | GaussianFull, curvature: Curvature
) -> None:
    """Bonnet and Price (App. D) against autograd through E_q[ℓ] itself, whose mean is a formula for this ℓ."""
    natural = member(family, seed=40, dim=2)

    def loss(theta: Tensor) -> Tensor:
        return theta[0] ** 2 * theta[1] + 0.5 * theta[1] ** 2 - theta[0]

    def expected_loss(mu: Expectation) -> Tensor:
        a, b = mu["linear"]
        if isinstance(family, GaussianFull):
            covariance = mu["quadratic"] - torch.outer(mu["linear"], mu["linear"])
        else:
            covariance = torch.diag(mu["quadratic"] - mu["linear"] ** 2)
        cubic = a**2 * b + b * covariance[0, 0] + 2 * a * covariance[0, 1]
        return cubic + 0.5 * (b**2 + covariance[1, 1]) - a

    got = gaussian_gradient(family, natural, of_function(loss), GaussHermite(5), curvature)
    wanted = gradient_in_expectation(family, expected_loss, natural)
    assert_same(family.space.project(got), wanted, 1e-9)


@pytest.mark.parametrize("curvature", [Hessian(), Price()], ids=["hessian", "price"])
def test_draws_give_it_on_average(curvature: Curvature) -> None:
    family, natural = GaussianDiagonal(), member(GaussianDiagonal(), seed=41)
    loss, draws = PROBLEM.loss(), 200
    exact = gaussian_gradient(family, natural, loss, GaussHermite(12), Hessian())
    each = [gaussian_gradient(family, natural, loss, MonteCarlo(1), curvature, generator(i)) for i in range(draws)]
    limit = scipy.stats.norm.isf(FAILURE_RATE / 24)
    for name in natural.names:
        values = torch.stack([gradient[name] for gradient in each])
        error = (values.mean(0) - exact[name]).abs() / (values.std(0) / len(each) ** 0.5)
        assert (error < limit).all()


def test_the_delta_method_is_one_point_and_price_is_refused_there() -> None:
    natural = member(GaussianFull(), seed=42)
    loss = PROBLEM.loss()
    got = gaussian_gradient(GaussianFull(), natural, loss, Delta(), Hessian())
    mean = GaussianFull().mean(natural)
    hessian = loss.hessian(mean)
    assert_same(got, Natural(linear=loss.gradient(mean) - hessian @ mean, quadratic=0.5 * hessian), 1e-12)
    with pytest.raises(Unsupported, match=r"MonteCarlo"):
        gaussian_gradient(GaussianFull(), natural, loss, Delta(), Price())


def test_a_mixture_of_one_is_a_gaussian() -> None:
    """Eqs. 28 to 30 for K = 1: E[∇log q] = 0 and E[∇²log q] = −S, the entropy of Eq. 6."""
    family, natural = GaussianFull(), member(GaussianFull(), seed=43, batch=(1,))
    mixture = FixedWeightsMixture(family, torch.ones(1).double())
    got = mixture_gradient(mixture, natural, PROBLEM.loss(), GaussHermite(8), Hessian())
    single = natural.map(lambda value: value[0])
    alone = gaussian_gradient(family, single, PROBLEM.loss(), GaussHermite(8), Hessian()) + single
    assert_same(got.map(lambda value: value[0]), alone, 1e-9)


def test_a_mixtures_gradient_is_that_of_its_objective() -> None:
    """∇_{μ_k}(E_q[ℓ] − H(q)) by autograd through a grid on the line."""
    mixture = FixedWeightsMixture(GaussianFull(), torch.tensor([0.3, 0.7]).double())
    natural = GaussianFull().from_mean_precision(
        torch.tensor([[-0.3], [0.4]]).double(), torch.tensor([[[1.3]], [[1.0]]]).double()
    )
    grid = torch.linspace(-9, 9, 40001, dtype=torch.float64).unsqueeze(-1)

    def objective(mu: Expectation) -> Tensor:
        log_density = mixture.log_prob(mixture.to_natural(mu), grid)
        loss = (grid.square() - 1).square().squeeze(-1) + 0.3 * grid.squeeze(-1)
        return (log_density.exp() * (loss + log_density)).sum() * (grid[1] - grid[0]).squeeze()

    wanted = torch.func.grad(objective)(mixture.to_expectation(natural))
    loss = of_function(lambda t: ((t.square() - 1).square() + 0.3 * t).sum())
    got = mixture_gradient(mixture, natural, loss, GaussHermite(60), Hessian())
    assert_close(got.blocks, wanted.blocks, rtol=1e-7, atol=1e-7)


def test_the_concrete_gradient_is_the_chain_rule_through_the_expectation() -> None:
    natural, uniform = member(Bernoulli(), seed=44), torch.tensor([0.2, 0.7, 0.5]).double()
    loss, temperature = PROBLEM.loss(), 0.6

    def relaxed(mu: Tensor) -> Tensor:
        return loss(torch.tanh((torch.atanh(mu) + 0.5 * torch.logit(uniform)) / temperature))

    got = concrete_gradient(Bernoulli(), natural, loss, temperature, Replay([uniform]))
    wanted = torch.func.grad(relaxed)(torch.tanh(natural["linear"]))
    assert_close(got["linear"], wanted, rtol=1e-9, atol=1e-9)
    with pytest.raises(InvalidArgument, match="temperature"):
        concrete_gradient(Bernoulli(), natural, loss, 0.0)


def test_straight_through_takes_the_gradient_at_the_signs() -> None:
    got = straight_through_gradient(Natural(linear=THETA), PROBLEM.loss())
    assert_close(got["linear"], PROBLEM.loss().gradient(torch.tensor([1.0, -1.0, 1.0]).double()))


def test_a_mixture_checks_its_weights() -> None:
    with pytest.raises(InvalidArgument, match="sum to 1"):
        FixedWeightsMixture(GaussianFull(), torch.tensor([0.5, 0.6]).double())
