"""KTiedVON: its update, its fixed point, its monotonicity, and what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.optim import KTiedVON, KTiedVONRule, Message, PriorTerm
from bayesrule.optim.ktied_von import KTiedVONState
from bayesrule.posteriors import KTiedCovariance
from optim_problems import LinearGaussian, make, network, silent, step
from test_optim_transcriptions import GAMMA, LR, N, X, Y, check, run

B1, B2 = 0.8, 0.9


def start(shape: tuple[int, int], rank: int) -> tuple[np.ndarray, np.ndarray]:
    """The factors before any data, written out."""
    level = np.sqrt(1 / np.sqrt(0.3 + GAMMA) / rank)
    return tuple(
        level * np.exp(0.1 * np.cos(np.pi * np.outer(np.arange(size) + 0.5, np.arange(rank)) / size)) for size in shape
    )


def tied_update(u: np.ndarray, v: np.ndarray, hessian: np.ndarray, rate: float, *, plain: bool) -> tuple:
    """The update of docs/ktied-von.md with the whole Hessian, entry by entry."""
    spread = u @ v.T
    new_u, new_v = u.copy(), v.copy()

    def growth(target: float, now: float) -> float:
        z = rate * (target / now - 1)
        return 1 + z if plain else 1 + z + z * z / 2

    for a in range(u.shape[1]):
        for i in range(len(u)):
            target = sum((hessian[i, j] + GAMMA) * spread[i, j] * v[j, a] for j in range(len(v)))
            new_u[i, a] *= growth(target, sum(v[j, a] / spread[i, j] for j in range(len(v)))) ** -0.25
        for j in range(len(v)):
            target = sum((hessian[i, j] + GAMMA) * spread[i, j] * u[i, a] for i in range(len(u)))
            new_v[j, a] *= growth(target, sum(u[i, a] / spread[i, j] for i in range(len(u)))) ** -0.25
    return new_u, new_v


@pytest.mark.parametrize("curvature_from", ["price", "squares"])
@pytest.mark.parametrize("rank", [1, 2])
def test_it_is_its_transcription(rank: int, curvature_from: str) -> None:
    def oracle(mu, noises):
        m, factors = [np.zeros_like(each) for each in mu], [start(each.shape, min(rank, *each.shape)) for each in mu]
        for t, noise in enumerate(noises, 1):
            spread = [u @ v.T for u, v in factors]
            theta = [w + e * s / np.sqrt(N) for w, e, s in zip(mu, noise, spread, strict=True)]
            seen = run(theta, X, Y)
            for i, gradient in enumerate(seen.weight_gradients):
                if curvature_from == "price":
                    hessian = gradient * (theta[i] - mu[i]) / (spread[i] ** 2 / N)
                else:
                    per_example = np.einsum("bi,bj->bij", seen.inputs[i], seen.gradients[i])
                    hessian = np.mean(per_example**2, axis=0)
                factors[i] = tied_update(*factors[i], hessian, 1 - B2, plain=curvature_from == "squares")
                m[i] = B1 * m[i] + (1 - B1) * gradient
                variance = (factors[i][0] @ factors[i][1].T) ** 2
                mu[i] = mu[i] - LR * variance * (m[i] / (1 - B1**t) + GAMMA * mu[i])
        return mu

    check(KTiedVON, oracle, rank=rank, betas=(B1, B2), init_curvature=0.3, curvature_from=curvature_from)


def projected(precision: np.ndarray, rank: int, begin: np.ndarray | None) -> tuple[np.ndarray, float]:
    """The tied Gaussian nearest to one of given precisions in KL(q ‖ p), by a general optimizer: variances and KL."""
    m, n = precision.shape
    begin = np.random.default_rng(0).normal(0, 0.5, (m + n) * rank) if begin is None else begin

    def kl(logs: np.ndarray) -> tuple[float, np.ndarray]:
        u, v = np.exp(logs[: m * rank]).reshape(m, rank), np.exp(logs[m * rank :]).reshape(n, rank)
        spread = u @ v.T
        value = 0.5 * np.sum(precision * spread**2 - np.log(precision * spread**2) - 1)
        slope = precision * spread - 1 / spread
        return value, np.concatenate([(u * (slope @ v)).ravel(), (v * (slope.T @ u)).ravel()])

    best = minimize(kl, begin, jac=True, method="BFGS", options={"gtol": 1e-10})
    u, v = np.exp(best.x[: m * rank]).reshape(m, rank), np.exp(best.x[m * rank :]).reshape(n, rank)
    return (u @ v.T) ** 2, best.fun


HESSIAN = np.exp(np.random.default_rng(4).normal(0, 1, (5, 4)))
PRIOR = PriorTerm(torch.tensor(0.05, dtype=torch.float64))


RULE_OF_TWO = KTiedVONRule(2, (0.9, 0.0), "squares")


def steps(rule: KTiedVONRule, count: int, diagonal: np.ndarray = HESSIAN) -> list[KTiedVONState]:
    """States on a quadratic whose Hessian has this diagonal, at its minimum."""
    mean, hessian = torch.zeros(5, 4, dtype=torch.float64), torch.from_numpy(diagonal)
    state, found = rule.init(mean, [(5, 4)], PRIOR.damping), []
    for _ in range(count):
        product = hessian * state.spread
        curvature = {"fan_in": product @ state.fan_out_factor, "fan_out": product.mT @ state.fan_in_factor}
        _, state = rule.update(mean, state, Message(mean, curvature), PRIOR, lr=0.1, refresh=True)
        found.append(state)
    return found


def kl_to_the_optimum(state: KTiedVONState, precision: np.ndarray = HESSIAN + 0.05) -> float:
    """KL of the tied posterior to the free diagonal optimum, of precision H + γ."""
    ratio = torch.from_numpy(precision) * state.spread.square()
    return 0.5 * (ratio - ratio.log() - 1).sum().item()


@pytest.mark.parametrize("curvature_from", ["price", "squares"])
@pytest.mark.parametrize("rank", [1, 2])
def test_its_fixed_point_is_the_kl_projection_of_the_diagonal_optimum(rank: int, curvature_from: str) -> None:
    """A rank of one has one optimum; above, a general optimizer that starts there finds nothing nearer around it."""
    state = steps(KTiedVONRule(rank, (0.9, 0.0), curvature_from), 60 if rank == 1 else 1500)[-1]
    factors = [each.numpy() for each in (state.fan_in_factor, state.fan_out_factor)]
    begin = None if rank == 1 else np.log(np.concatenate([each.ravel() for each in factors]))
    want, kl = projected(HESSIAN + 0.05, rank, begin)
    assert kl_to_the_optimum(state) == pytest.approx(kl, rel=1e-9)
    np.testing.assert_allclose(state.spread.square().numpy(), want, rtol=1e-4)
    if rank == 2:
        assert kl < 0.7 * projected(HESSIAN + 0.05, 1, None)[1]


def test_a_curvature_of_tied_precisions_is_learned() -> None:
    """Standard deviations of rank two: nothing is lost, so that the KL goes to zero."""
    rng = np.random.default_rng(1)
    spread = rng.uniform(0.2, 2, (5, 2)) @ rng.uniform(0.2, 2, (4, 2)).T
    found = [kl_to_the_optimum(each, 1 / spread**2) for each in steps(RULE_OF_TWO, 1500, 1 / spread**2 - 0.05)]
    assert found[-1] < 1e-6 < 1e-2 < found[0]


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_step_comes_nearer_in_kl(rank: int, rate: float) -> None:
    found = [kl_to_the_optimum(state) for state in steps(KTiedVONRule(rank, (0.9, 1 - rate), "squares"), 200)]
    assert np.diff(found).max() <= 1e-12
    assert found[-1] < 0.9 * found[0]


def test_a_curvature_of_rank_one_is_learned_exactly() -> None:
    """On a linear-Gaussian model, mean and variances are those of the mean-field optimum, which is tied there."""
    problem = LinearGaussian.make()
    optimizer = problem.optimizer(KTiedVON, lr=2.95, rank=1, betas=(0.52, 0.5), curvature_from="squares")
    for _ in range(220):
        step(optimizer, problem.loss(optimizer), noise=silent)
    (posterior,) = br.posteriors(optimizer).values()
    assert isinstance(posterior.covariance, KTiedCovariance)
    np.testing.assert_allclose(posterior.mean, problem.mean, rtol=1e-8, atol=1e-10)
    variance = np.repeat(1 / np.diag(problem.precision), 2).reshape(4, 2)
    np.testing.assert_allclose(posterior.variance, variance, rtol=1e-9)


@pytest.mark.parametrize("size", [-1e4, 1e4])
def test_factors_stay_positive_whatever_the_gradients(size: float) -> None:
    rule = KTiedVONRule(2, (0.9, 0.5))
    mean = torch.zeros(5, 4, dtype=torch.float64)
    state = rule.init(mean, [(5, 4)], PRIOR.damping)
    for _ in range(20):
        products = rule.at_draw(state, torch.full_like(mean, size), torch.ones_like(mean), PRIOR.damping)
        _, state = rule.update(mean, state, Message(mean, products), PRIOR, lr=0.1, refresh=True)
        assert state.fan_in_factor.min() > 0
        assert state.fan_out_factor.min() > 0
        assert state.spread.isfinite().all()


def bytes_of(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(bytes_of(each) for each in value.values())
    return sum(bytes_of(each) for each in value) if isinstance(value, list) else 0


def test_its_state_is_about_half_of_adams() -> None:
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    optimizer, adam = KTiedVON(net, n_data=50_000, rank=2), torch.optim.Adam(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    adam.step()
    ours, theirs = bytes_of(optimizer.state_dict()["posterior"]["groups"]), bytes_of(adam.state_dict()["state"])
    assert 0.5 < ours / theirs < 0.51
    state = optimizer.states["0.weight"]
    assert state.fan_in_factor.shape == (785, 2)
    assert state.fan_out_factor.shape == (400, 2)


def test_narrow_layers_take_the_rank_they_have() -> None:
    optimizer = make(KTiedVON, network(3, 4, 1), rank=3, likelihood=br.Gaussian(1.0))
    assert [state.fan_out_factor.shape for state in optimizer.states.values()] == [(4, 3), (1, 1)]


@pytest.mark.parametrize(("options", "match"), [({"rank": 0}, "rank"), ({"init_curvature": -1.0}, "init_curvature")])
def test_arguments_are_checked(options, match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        make(KTiedVON, **options)
