"""Momentum, temperature, step sizes, the line search and the reverse form of the learning rule."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument
from bayesrule.expfam import (
    Expectation,
    ExponentialFamily,
    Gamma,
    GaussianDiagonal,
    GaussianFixed,
    GaussianFull,
    Natural,
    constant,
    gradient_in_expectation,
    gradients_in_expectation,
    learning_rule,
    robbins_monro,
)
from expfam_members import DOUBLE, assert_same, every_family, generator, member
from learning_rule_problems import PRECISION, one_step


@every_family
def test_a_step_minimises_the_mirror_descent_objective(family: ExponentialFamily) -> None:
    """Eq. 22 at λ_{t+1}: its gradient in λ vanishes, and points nearby are higher."""
    natural, target = member(family, seed=20), member(family, seed=21)
    step_size = 0.4
    gradient = natural + family.base.gradient(natural) - target  # of ⟨−target, μ⟩ − H
    following = family.check(one_step(family, natural, -target, step_size))
    if isinstance(family, GaussianFixed):
        gradient = -target

    def objective(point: Natural) -> Tensor:
        return family.inner(gradient, family.to_expectation(point)) + family.kl(point, natural) / step_size

    slope = family.space.project(torch.func.grad(objective)(following))
    assert_same(slope, slope.map(torch.zeros_like), 1e-9)
    noise = generator(22)
    for _ in range(5):
        nearby = following + 1e-3 * family.space.project(
            following.map(lambda value: noise(tuple(value.shape), "normal", value))
        )
        assert objective(nearby) > objective(following)


@every_family
def test_the_kl_is_both_bregman_divergences(family: ExponentialFamily) -> None:
    """Eq. 21: KL[p ‖ q] = D_A*(μ_p ‖ μ_q) = D_A(λ_q ‖ λ_p)."""
    p, q = member(family, seed=23), member(family, seed=24)
    mu_p, mu_q = family.to_expectation(p), family.to_expectation(q)

    def conjugate(mu: Expectation) -> Tensor:
        natural = family.to_natural(mu)
        return family.inner(natural, mu) - family.log_partition(natural)

    dual = conjugate(mu_p) - conjugate(mu_q) - family.inner(q, mu_p - mu_q)
    primal = family.log_partition(q) - family.log_partition(p) - family.inner(q - p, mu_p)
    assert_close(dual, family.kl(p, q), rtol=1e-8, atol=1e-8)
    assert_close(primal, family.kl(p, q), rtol=1e-9, atol=1e-9)


def test_momentum_of_a_diagonal_gaussian() -> None:
    """Eq. 81, corrected: the term is γ (s_{t−1}/s_{t+1})∘(θ_t − θ_{t−1}), and s gets γ(s_t − s_{t−1})."""
    family, rate, inertia = GaussianDiagonal(), 0.3, 0.2
    hessian, vector = torch.tensor([2.0, 0.7]).double(), torch.tensor([1.0, -1.0]).double()

    def gradient(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        mean = family.mean(naturals["q"])
        return {"q": family.bonnet_price(naturals["q"], hessian * mean - vector, torch.diag(hessian))}

    start = torch.tensor([3.0, -2.0]).double(), torch.tensor([1.0, 4.0]).double()
    steps = learning_rule.iterates(
        {"q": family}, {"q": family.from_mean_precision(*start)}, gradient, rate, momentum=inertia
    )
    theta, scale = start
    before_theta, before_scale = start
    for naturals in islice(steps, 6):
        new_scale = (1 - rate) * scale + rate * hessian + inertia * (scale - before_scale)
        step = -rate * (hessian * theta - vector) / new_scale
        new_theta = theta + step + inertia * before_scale / new_scale * (theta - before_theta)
        before_theta, before_scale, theta, scale = theta, scale, new_theta, new_scale
        assert_close(family.to_mean_precision(naturals["q"]), (theta, scale), rtol=1e-12, atol=1e-12)


def test_momentum_of_a_fixed_covariance_is_the_heavy_ball_whatever_it_is() -> None:
    vector, start = torch.tensor([1.0, -1.0, 0.5]).double(), torch.ones(3).double()
    family = GaussianFixed(PRECISION)

    def gradient(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        return {"q": Natural(linear=PRECISION @ (family.to_mean(naturals["q"]) - vector))}

    steps = learning_rule.iterates({"q": family}, {"q": family.from_mean(start)}, gradient, 0.2, momentum=0.5)
    before = theta = start
    for naturals in islice(steps, 5):
        before, theta = theta, theta - 0.2 * (theta - vector) + 0.5 * (theta - before)
        assert_close(family.to_mean(naturals["q"]), theta, rtol=1e-12, atol=1e-12)


@every_family
def test_temperature_weighs_the_entropy(family: ExponentialFamily) -> None:
    natural, gradient = member(family, seed=25), member(family, seed=26)
    (got,) = learning_rule.step({"q": family}, {"q": natural}, {"q": gradient}, 0.3, temperature=0.25).values()
    entropy = gradient_in_expectation(family, lambda mu: family.entropy(family.to_natural(mu)), natural)
    assert_same(got, natural - 0.3 * gradient + 0.3 * 0.25 * entropy, 1e-9)


def test_each_name_has_its_own_step_size() -> None:
    families = {"a": Gamma(), "b": GaussianFull()}
    naturals = {name: member(family, seed=27) for name, family in families.items()}
    gradients = {name: member(family, seed=28) for name, family in families.items()}
    together = learning_rule.step(families, naturals, gradients, {"a": 0.2, "b": 0.9})
    assert_same(together["a"], one_step(families["a"], naturals["a"], gradients["a"], 0.2), 0.0)
    assert_same(together["b"], one_step(families["b"], naturals["b"], gradients["b"], 0.9), 0.0)
    with pytest.raises(InvalidArgument, match="names"):
        learning_rule.step(families, naturals, gradients, {"a": 0.2})


def test_the_line_search_halves_each_members_step_until_it_is_valid() -> None:
    family = GaussianDiagonal()
    start = family.from_mean_precision(torch.zeros(2, 1).double(), torch.ones(2, 1).double())
    bad = Natural(linear=torch.zeros(2, 1).double(), quadratic=torch.tensor([[-4.0], [0.0]]).double())
    proposal = {"q": one_step(family, start, bad, 0.9)}  # precisions 1 − 9ρ and 1 − ρ
    assert family.valid(proposal["q"]).tolist() == [False, True]
    (kept,) = learning_rule.stay_valid({"q": family}, {"q": start}, proposal).values()
    assert family.valid(kept).all()
    shortened = one_step(family, start, bad, 0.9 / 16)
    assert_close(kept["quadratic"][0], shortened["quadratic"][0])
    assert_close(kept["quadratic"][1], proposal["q"]["quadratic"][1])
    with pytest.raises(InvalidArgument, match="start from"):
        learning_rule.stay_valid({"q": family}, {"q": bad}, {"q": start})


def test_reverse_step_is_maximum_likelihood_and_its_online_form() -> None:
    family, truth = Gamma(), member(Gamma(), seed=29)
    data = family.sample(truth, generator(30), (500,))
    mean = family.statistics(data).map(lambda value: value.mean(0))
    now = family.to_expectation(member(family, seed=31))
    (whole,) = learning_rule.reverse_step({"q": now}, {"q": now - mean}, 1.0).values()
    fitted = family.to_natural(whole)
    slope = torch.func.grad(lambda point: family.log_prob(point, data).mean())(fitted)
    assert_close(slope.blocks, fitted.map(torch.zeros_like).blocks, rtol=0, atol=1e-9)
    (part,) = learning_rule.reverse_step({"q": now}, {"q": now - mean}, 0.25).values()
    assert_same(part, 0.75 * now + 0.25 * mean, 1e-12)


def test_gradients_of_chosen_names_only() -> None:
    families = {"a": Gamma(), "b": Gamma()}
    naturals = {name: member(Gamma(), seed=32) for name in families}

    def loss(mu: dict[str, Expectation]) -> Tensor:
        return mu["a"]["log"] * mu["b"]["linear"]

    every = gradients_in_expectation(families, loss, naturals)
    (one,) = gradients_in_expectation(families, loss, naturals, ["b"]).items()
    assert one[0] == "b"
    assert_same(one[1], every["b"], 0.0)


def test_schedules() -> None:
    assert [constant(0.3)(t) for t in (0, 9)] == [0.3, 0.3]
    assert [robbins_monro(2.0, 1.0)(t) for t in (0, 2)] == [0.5, 0.25]
    with pytest.raises(InvalidArgument, match="decay"):
        robbins_monro(1.0, 0.5)
    assert DOUBLE.dtype == torch.float64
