"""Newton's method from the expectation to the natural parameter, where there is no formula."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.expfam import Bernoulli, Expectation, Gamma, GaussianFull, solve_natural
from expfam_members import DOUBLE, assert_same, member


@pytest.mark.parametrize("mean", [3e-9, 3.0, 3e9])
@pytest.mark.parametrize("shape", [1e-3, 0.1, 1.0, 30.0, 1e4, 1e5])
def test_newton_agrees_with_bracketed_root_finding(shape: float, mean: float) -> None:
    log_mean = scipy.special.digamma(shape) + np.log(mean) - np.log(shape)
    gap = np.log(mean) - log_mean
    root = scipy.optimize.brentq(
        lambda log_shape: log_shape - scipy.special.digamma(np.exp(log_shape)) - gap, -12, 14, xtol=1e-15, rtol=1e-15
    )
    got, rate = Gamma().to_shape_rate(Gamma().to_natural(Expectation(log=DOUBLE + log_mean, linear=DOUBLE + mean)))
    assert_close(got, DOUBLE + np.exp(root), rtol=1e-13 / gap + 1e-12, atol=0)  # the data hold `gap` no better
    assert_close(got / rate, DOUBLE + mean, rtol=1e-12, atol=0)


def test_newton_comes_back_from_a_far_start() -> None:
    wanted = Gamma().from_shape_rate(torch.tensor([0.01, 2.0, 80.0]).double(), torch.tensor([7.0, 0.1, 1.0]).double())
    start = Gamma().from_shape_rate(torch.tensor([90.0, 90.0, 0.02]).double(), torch.tensor([0.1, 50.0, 9.0]).double())
    assert_same(solve_natural(Gamma(), Gamma().to_expectation(wanted), start), wanted, 1e-9)


def test_newton_on_vectors_and_batches() -> None:
    wanted = member(Bernoulli(), seed=16, batch=(2, 2))
    start = wanted.map(torch.zeros_like)
    assert_same(solve_natural(Bernoulli(), Bernoulli().to_expectation(wanted), start), wanted, 1e-10)


def test_newton_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InvalidArgument, match=r"E\[log θ\] < log E\[θ\]"):
        Gamma().to_natural(Expectation(log=DOUBLE + 1.0, linear=DOUBLE + 2.0))
    start = Gamma().from_shape_rate(DOUBLE + 1.0, DOUBLE + 1.0)
    with pytest.raises(InvalidArgument, match="no natural parameter"):
        solve_natural(Gamma(), Expectation(log=DOUBLE + 1.0, linear=DOUBLE + 2.0), start)
    natural = member(GaussianFull(), seed=17)
    with pytest.raises(Unsupported, match="symmetric block"):
        solve_natural(GaussianFull(), GaussianFull().to_expectation(natural), natural)
