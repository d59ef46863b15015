"""Every row of Table 1 agrees with an independent computation, and says so when it cannot run."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.testing import assert_close

from bayesrule import algorithms
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.blr.problems import Size, logistic
from bayesrule.experiments.blr.table1 import LIBRARY, ROWS, TABLE
from bayesrule.expfam import AbsoluteHessian, GaussianDiagonal, GaussianFull, Price, TrueFisher, of_function
from bayesrule.random import FromGenerator

SIZE = Size(examples=40, steps=8, seed=3)


@pytest.mark.parametrize("name", TABLE)
def test_a_row_of_table_1(name: str) -> None:
    for package in TABLE[name].packages:
        pytest.importorskip(package)
    assert TABLE[name].measure(SIZE) < 1e-8


def test_there_are_18_of_which_12_are_compared_with_libraries() -> None:
    assert len(ROWS) == 18
    assert sum(TABLE[name].tier == LIBRARY for name in ROWS) == 12


def test_a_comparison_notices_a_wrong_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    right = algorithms.adam
    monkeypatch.setattr(algorithms, "adam", lambda losses, start, lr: right(losses, start, lr=1.001 * lr))
    assert TABLE["adam"].measure(SIZE) > 1e-6


@pytest.mark.parametrize("curvature", [TrueFisher(), AbsoluteHessian(), Price()], ids=["voggn", "absolute", "von"])
def test_relatives_of_vogn_move_towards_the_minimum(curvature: AbsoluteHessian | TrueFisher | Price) -> None:
    problem = logistic(SIZE)
    loss, family = problem.loss(), GaussianDiagonal()
    natural = family.from_mean_precision(torch.full((3,), 1.5).double(), torch.full((3,), 10.0).double())
    noise = FromGenerator(torch.Generator().manual_seed(0))
    steps = algorithms.vogn(lambda t: loss, natural, 0.15, samples=20, curvature=curvature, noise=noise)
    *_, last = islice(steps, 40)
    mode = GaussianFull().mean(algorithms.laplace(loss, torch.zeros(3).double()))
    assert (family.mean(family.check(last)) - mode).abs().max() < 0.3


def test_laplace_says_when_there_is_no_minimum() -> None:
    with pytest.raises(InvalidArgument, match="no minimum"):
        algorithms.laplace(of_function(lambda theta: torch.cosh(theta).log().sum()), torch.full((1,), 5.0).double())


def test_components_find_different_minima() -> None:
    starts = torch.tensor([[-0.4, -0.3], [0.3, 0.4], [-0.3, 0.4], [0.4, -0.3]]).double()
    mixture, natural = algorithms.uniform_mixture(starts, 1.0)
    loss = of_function(lambda theta: (theta.square() - 1).square().sum())
    *_, last = islice(algorithms.multimodal(loss, mixture, natural, 0.1), 80)
    corners = torch.tensor([[-1.0, -1.0], [1.0, 1.0], [-1.0, 1.0], [1.0, -1.0]]).double()
    assert_close(GaussianFull().mean(last), corners, rtol=0, atol=0.02)
