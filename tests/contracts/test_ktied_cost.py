"""The k-tied covariance equals the materialised formula, and never makes the matrix that the formula needs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayesrule.posteriors import KTiedCovariance
from largest_tensor import LargestTensor

ranks = pytest.mark.parametrize("rank", [1, 2, 3, 4])
kinds = pytest.mark.parametrize("kind", ["scalar", "row", "column", "full"])


def factors(fan_in: int, fan_out: int, rank: int) -> tuple[Tensor, Tensor]:
    sides = torch.randn(fan_in, rank, dtype=torch.float64), torch.randn(fan_out, rank, dtype=torch.float64)
    return sides[0].exp().requires_grad_(), sides[1].exp().requires_grad_()


def precision(kind: str, fan_in: int, fan_out: int) -> Tensor:
    shape = {"scalar": (), "row": (fan_in, 1), "column": (1, fan_out), "full": (fan_in, fan_out)}[kind]
    return torch.rand(shape, dtype=torch.float64).add(0.5).requires_grad_()


def assert_equal_with_gradients(got: Tensor, want: Tensor, inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(want, inputs)
    for mine, theirs in zip(torch.autograd.grad(got, inputs), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@ranks
@kinds
@pytest.mark.parametrize(("fan_in", "fan_out"), [(9, 5), (4, 11)])
def test_trace_equals_the_materialised_one(rank: int, kind: str, fan_in: int, fan_out: int) -> None:
    left, right = factors(fan_in, fan_out, rank)
    weights = precision(kind, fan_in, fan_out)
    want = (weights * (left @ right.mT).square()).sum()
    assert_equal_with_gradients(KTiedCovariance(left, right).trace(weights), want, (left, right, weights))


@ranks
@pytest.mark.parametrize(("fan_in", "fan_out"), [(9, 5), (4, 11)])
def test_logdet_equals_the_materialised_one(rank: int, fan_in: int, fan_out: int) -> None:
    left, right = factors(fan_in, fan_out, rank)
    want = (left @ right.mT).square().log().sum()
    assert_equal_with_gradients(KTiedCovariance(left, right).logdet(), want, (left, right))


@ranks
@kinds
def test_trace_makes_nothing_of_the_matrix_size(rank: int, kind: str) -> None:
    """The largest tensor is one side's pair products, (m or n) · k(k + 1)/2 entries."""
    fan_in, fan_out = 90, 70
    left, right = factors(fan_in, fan_out, rank)
    weights = precision(kind, fan_in, fan_out).detach()
    pairs = rank * (rank + 1) // 2
    with LargestTensor() as cost:
        KTiedCovariance(left, right).trace(weights).backward()
    assert cost.entries <= fan_in * pairs < fan_in * fan_out


@ranks
def test_trace_costs_as_much_as_the_sum_of_the_sides(rank: int) -> None:
    """Twice the sides, twice the largest tensor: not four times."""
    costs = []
    for size in (40, 80):
        left, right = factors(size, size, rank)
        with LargestTensor() as cost:
            KTiedCovariance(left, right).trace(torch.tensor(2.0, dtype=torch.float64)).backward()
        costs.append(cost.entries)
    assert costs[1] == 2 * costs[0]


def test_the_count_sees_a_materialised_matrix() -> None:
    left, right = factors(90, 70, 2)
    with LargestTensor() as cost:
        KTiedCovariance(left, right).diagonal()
    assert cost.entries == 90 * 70
