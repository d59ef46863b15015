"""Message passing in models: conjugate ones in one step, the ELBO never falls, local and global forms agree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.distributions as D
from scipy.special import digamma
from torch import Tensor
from torch.testing import assert_close

from bayesrule.algorithms import em_step
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.blr.problems import Size, clusters, logistic
from bayesrule.expfam import (
    ChainCategorical,
    ChainGaussian,
    Dirichlet,
    Gamma,
    GaussianFull,
    Natural,
    NormalGamma,
    NormalWishart,
)
from bayesrule.inference import (
    Factor,
    LogisticLikelihood,
    Model,
    PoissonLikelihood,
    StateSpace,
    bayesian_mixture,
    complete_mixture,
    fit_vmp,
    glm,
    global_step,
    gp_classification,
    hidden_markov,
    is_rising,
    linear_regression,
    local_step,
    ridge,
    squared_exponential,
)
from expfam_members import DOUBLE, assert_same, member
from learning_rule_problems import regression


def test_ridge_is_the_posterior() -> None:
    x, y = regression()
    mean, precision = GaussianFull().to_mean_precision(ridge(x, y, prior_precision=0.7, noise_precision=4.0))
    wanted = 4 * x.mT @ x + 0.7 * torch.eye(3).double()
    assert_close(precision, wanted, rtol=1e-12, atol=1e-12)
    assert_close(mean, torch.linalg.solve(wanted, 4 * x.mT @ y), rtol=1e-12, atol=1e-12)


@pytest.fixture
def chain() -> StateSpace:
    def tensor(*rows: tuple[float, ...]) -> Tensor:
        return torch.tensor(rows, dtype=torch.float64)

    return StateSpace(
        transition=tensor((0.9, 0.2), (-0.1, 0.8)),
        transition_covariance=tensor((0.5, 0.1), (0.1, 0.3)),
        observation=tensor((1.0, 0.3)),
        observation_covariance=tensor((0.4,)),
        first_mean=tensor((0.5, -0.2))[0],
        first_covariance=tensor((1.0, 0.2), (0.2, 0.7)),
    )


def test_the_smoother_equals_the_dense_solve(chain: StateSpace) -> None:
    length, y = 6, torch.randn(6, 1, dtype=torch.float64)
    # All states are linear in (x_1, noises); their covariance and that with the observations, written out.
    F, Q, H = chain.transition.numpy(), chain.transition_covariance.numpy(), chain.observation.numpy()
    mean, covariance = np.zeros(2 * length), np.zeros((2 * length, 2 * length))
    mean[:2], covariance[:2, :2] = chain.first_mean, chain.first_covariance
    for t in range(1, length):
        now, before = slice(2 * t, 2 * t + 2), slice(2 * t - 2, 2 * t)
        mean[now] = F @ mean[before]
        covariance[now, : 2 * t] = F @ covariance[before, : 2 * t]
        covariance[: 2 * t, now] = covariance[now, : 2 * t].T
        covariance[now, now] = F @ covariance[before, before] @ F.T + Q
    observe = np.kron(np.eye(length), H)
    spread = observe @ covariance @ observe.T + 0.4 * np.eye(length)
    gain = np.linalg.solve(spread, observe @ covariance).T
    posterior_mean = mean + gain @ (y.numpy()[:, 0] - observe @ mean)
    posterior = covariance - gain @ observe @ covariance
    family = ChainGaussian()
    got_mean, got_covariance, got_cross = family.moments(family.to_expectation(chain.smooth(y)))
    blocks = torch.as_tensor(posterior).reshape(length, 2, length, 2).transpose(1, 2)
    assert_close(got_mean.flatten(), torch.as_tensor(posterior_mean), rtol=1e-10, atol=1e-10)
    for t in range(length):
        assert_close(got_covariance[t], blocks[t, t], rtol=1e-10, atol=1e-10)
        if t + 1 < length:
            assert_close(got_cross[t], blocks[t, t + 1], rtol=1e-10, atol=1e-10)
    last = GaussianFull().to_mean_precision(chain.filter(y)[-1])
    assert_close(last[0], got_mean[-1], rtol=1e-10, atol=1e-10)


def test_em_never_lowers_the_likelihood() -> None:
    x = clusters(Size(60, 1, 1))
    data = complete_mixture(x, 3)
    start = GaussianFull().from_mean_precision(x[:3], torch.eye(2).double().expand(3, 2, 2))
    theta = data.model.from_weights(torch.full((3,), 1 / 3).double(), start)
    latent, likelihoods = Natural(logits=torch.zeros(60, 2).double()), []
    for _ in range(25):
        latent, theta = em_step(data, latent, theta)
        weights, naturals = data.model.to_weights(theta)
        mean, precision = GaussianFull().to_mean_precision(naturals)
        components = D.MultivariateNormal(mean, precision_matrix=precision)
        mixture = D.MixtureSameFamily(D.Categorical(weights), components)
        likelihoods.append(mixture.log_prob(x).sum().item())
    assert is_rising(likelihoods)
    assert likelihoods[-1] > likelihoods[0] + 0.1


def mixture_problem() -> tuple[Model, dict[str, Natural]]:
    x = clusters(Size(40, 1, 2))
    one = DOUBLE + 1
    component = NormalWishart().from_usual(torch.zeros(2).double(), 0.5 * one, 4 * one, torch.eye(2).double())
    model = bayesian_mixture(
        x, weights_prior=Dirichlet().from_concentration(torch.ones(3).double()), component_prior=component
    )
    labels = torch.randn(40, 2, dtype=torch.float64)
    return model, {
        "labels": Natural(logits=labels),
        "weights": Dirichlet().from_concentration(torch.ones(3).double()),
        "components": component.map(lambda value: value.expand(3, *value.shape)),
    }


def regression_problem() -> tuple[Model, dict[str, Natural]]:
    model = linear_regression(*regression(), prior_precision=0.7, noise_shape=6.0, noise_rate=6.0)
    return model, {"weights": member(GaussianFull(), seed=50), "noise": member(Gamma(), seed=51)}


def markov_problem() -> tuple[Model, dict[str, Natural]]:
    y = torch.cat([torch.randn(15), 4 + torch.randn(15)]).double()
    one = DOUBLE + 1
    dirichlet, emission = Dirichlet(), NormalGamma().from_usual(0 * one, 0.1 * one, 2 * one, 2 * one)
    start = dirichlet.from_concentration(torch.ones(2).double())
    rows = dirichlet.from_concentration(torch.ones(2, 2).double() + 2 * torch.eye(2).double())
    model = hidden_markov(y, start_prior=start, transition_prior=rows, emission_prior=emission)
    return model, {
        "states": Natural(state=torch.randn(30, 1).double(), link=torch.zeros(29, 1, 1).double()),
        "start": start,
        "transitions": rows,
        "emissions": NormalGamma().from_usual(
            torch.tensor([-1.0, 1.0]).double(), one.expand(2), one.expand(2), one.expand(2)
        ),
    }


PROBLEMS = {"mixture": mixture_problem, "regression": regression_problem, "hidden-markov": markov_problem}


@pytest.mark.parametrize("name", PROBLEMS)
def test_message_passing_never_lowers_the_elbo(name: str) -> None:
    model, naturals = PROBLEMS[name]()
    fit = fit_vmp(model, naturals, list(naturals)[::-1], sweeps=12)  # random labels would be lost, if they came first
    assert len(fit.elbos) > 3
    assert is_rising(fit.elbos)
    assert fit.elbos[-1] > fit.elbos[0] + 0.01
    for node, natural in fit.naturals.items():
        model.families[node].check(natural)


def test_rising_notices_a_fall() -> None:
    assert is_rising([1.0, 2.0, 2.0])
    assert not is_rising([1.0, 2.0, 1.999])


def test_a_hidden_chain_given_the_rest_is_the_sum_over_paths() -> None:
    """log q(path) = E[log start] + Σ E[log transition] + Σ E[log emission] + constant, all 16 paths enumerated."""
    y, one = torch.tensor([0.3, -1.0, 2.5, 1.9]).double(), torch.ones(2).double()
    start = torch.tensor([1.5, 0.7]).double()
    rows = torch.tensor([[3.0, 1.0], [0.5, 2.0]]).double()
    shape, rate, strength, centre = torch.tensor([[2.0, 3.0], [1.5, 4.0], [0.7, 2.0], [-1.0, 2.0]]).double()
    naturals = {
        "states": Natural(state=torch.zeros(4, 1).double(), link=torch.zeros(3, 1, 1).double()),
        "start": Dirichlet().from_concentration(start),
        "transitions": Dirichlet().from_concentration(rows),
        "emissions": NormalGamma().from_usual(centre, strength, shape, rate),
    }
    model = hidden_markov(
        y,
        start_prior=Dirichlet().from_concentration(one),
        transition_prior=Dirichlet().from_concentration(one.expand(2, 2)),
        emission_prior=NormalGamma().from_usual(*(DOUBLE + 1 for _ in range(4))),
    )
    states = fit_vmp(model, naturals, ["states"], sweeps=1).naturals["states"]

    def expected_log(concentration: np.ndarray) -> np.ndarray:
        return digamma(concentration) - digamma(concentration.sum(-1, keepdims=True))

    precision = (shape / rate).numpy()
    misfit = 1 / strength.numpy() + precision * (y.numpy()[:, None] - centre.numpy()) ** 2
    emission = 0.5 * (digamma(shape.numpy()) - np.log(rate.numpy()) - misfit)
    first, link = expected_log(start.numpy()), expected_log(rows.numpy())
    weights, totals = [], np.zeros((4, 2))
    paths = list(itertools.product(range(2), repeat=4))
    for path in paths:
        steps = sum(link[i, j] for i, j in itertools.pairwise(path))
        weights.append(np.exp(first[path[0]] + steps + sum(emission[t, k] for t, k in enumerate(path))))
    for path, weight in zip(paths, weights, strict=True):
        totals[np.arange(4), path] += weight / sum(weights)
    family = ChainCategorical()
    assert_close(family.states(family.to_expectation(states)), torch.as_tensor(totals), rtol=1e-10, atol=1e-10)


def glm_start(dim: int) -> dict[str, Natural]:
    eye = torch.eye(dim).double()
    return {"weights": GaussianFull().from_mean_precision(torch.zeros(dim).double(), eye)}


def test_local_and_global_updates_are_equal() -> None:
    """Eqs. 58 and 60, with the global start split into sites in any way."""
    problem = logistic(Size(30, 1, 4))
    for likelihood in (LogisticLikelihood(), PoissonLikelihood()):
        model, naturals = glm(problem.x, problem.y, likelihood, prior_precision=1.0), glm_start(3)
        sites = [{"weights": 0.3 * naturals["weights"]}, {"weights": 0.7 * naturals["weights"]}]
        for _ in range(6):
            naturals = global_step(model, naturals, 0.4)
            together, sites = local_step(model, sites, 0.4)
            assert_same(together["weights"], naturals["weights"], 1e-12)


def test_a_model_needs_a_family_for_every_node() -> None:
    with pytest.raises(InvalidArgument, match="no family"):
        Model({"a": Gamma()}, (Factor(("b",), lambda mu: mu["b"]["log"]),))
    with pytest.raises(InvalidArgument, match="no factor"):
        global_step(Model({"a": Gamma()}, ()), {"a": member(Gamma(), seed=52)}, 0.5)


def test_gp_classification_is_stationary() -> None:
    """Eq. 5 at the end: K⁻¹ + diag(E[p(1−p)]) is the precision, and K⁻¹m = E[y − p], by a grid on the line."""
    x = torch.linspace(-2, 2, 8, dtype=torch.float64).unsqueeze(-1)
    y = (x.squeeze(-1) > 0.3).double()
    kernel = squared_exponential(scale=1.5, length=0.8)
    model = gp_classification(x, y, kernel, LogisticLikelihood())
    eye = torch.eye(8).double()
    naturals = {"f": GaussianFull().from_mean_precision(torch.zeros(8).double(), eye)}
    for _ in range(80):
        naturals = global_step(model, naturals, 0.7)
    mean, precision = (value.numpy() for value in GaussianFull().to_mean_precision(naturals["f"]))
    inverse = np.linalg.inv(kernel(x, x).numpy() + 1e-9 * np.eye(8))
    standard = np.linspace(-10, 10, 2001)
    weights = np.exp(-0.5 * standard**2) / np.exp(-0.5 * standard**2).sum()
    f = mean + np.sqrt(np.diag(np.linalg.inv(precision))) * standard[:, None]
    p = 1 / (1 + np.exp(-f))
    assert np.allclose(precision, inverse + np.diag(weights @ (p * (1 - p))), rtol=0, atol=1e-5 * np.abs(inverse).max())
    assert np.allclose(inverse @ mean, y.numpy() - weights @ p, atol=1e-5)
