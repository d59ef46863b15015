"""The pieces of the fused code: products of pairs, thin products, and logarithms in blocks and by nodes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from bayesrule.kernels.log_blocks import sum_log_blocks
from bayesrule.kernels.log_nodes import FARTHEST, WIDEST, sum_log_by_nodes
from bayesrule.kernels.pairs import pair_products, pair_rows, pair_rows_backward
from bayesrule.kernels.sum_log_product import sum_log_with_gradient_in_logs
from bayesrule.kernels.thin import FEW_COLUMNS, MOST_VECTORS, outer_sum
from largest_tensor import LargestTensor

assert_equal = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_products_of_pairs_and_thin_products(rank: int) -> None:
    logs, count = random(6, rank), rank * (rank + 1) // 2
    assert_equal(pair_rows(logs.detach(), 2.0), pair_products(logs.detach().exp(), 2.0).T)
    gradient = random(count, 6).detach()
    want = torch.autograd.grad(pair_products(logs.exp(), 2.0), logs, gradient.T)[0]
    assert_equal(pair_rows_backward(pair_rows(logs.detach(), 2.0), 2 * gradient, rank), want)
    for vectors in (rank, MOST_VECTORS + rank):
        for columns in (4, FEW_COLUMNS + 1):
            left, right = random(vectors, 6).detach(), random(vectors, columns).detach()
            assert_equal(outer_sum(left, right), left.T @ right)


def test_a_factor_of_zero_has_products_of_zero() -> None:
    factor = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    rows = pair_rows(factor.log(), 2.0)
    assert_equal(rows, pair_products(factor, 2.0).T)
    slopes = pair_rows_backward(rows, 2 * torch.ones_like(rows), 2)
    assert_equal(slopes, torch.tensor([[0.0, 8.0], [18.0, 0.0]], dtype=torch.float64))


def sum_of_logarithms(logs: list[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """With its gradients, by the dense formula."""
    free = [log.double().requires_grad_() for log in logs]
    total = (free[0].exp() @ free[1].exp().T).log().sum()
    return total.detach(), torch.autograd.grad(total, free)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)])
@pytest.mark.parametrize("half_width", [0.0, 1e-7, 0.01, 0.5, 2.0])
@pytest.mark.parametrize("centre", [-9.0, 0.0, 3.0])
@pytest.mark.parametrize("swapped", [False, True])
def test_sums_of_logarithms_by_nodes(
    dtype: torch.dtype, tolerance: float, half_width: float, centre: float, swapped: bool
) -> None:
    """The ratios of one factor's columns lie in an interval, those of the other anywhere.

    Slopes are shares of 300 or 401 entries, exact as such.
    """
    wide, narrow = torch.randn(401, 2, dtype=torch.float64), torch.randn(300, 2, dtype=torch.float64)
    narrow[:, 1] = narrow[:, 0] + centre + half_width * (2 * torch.rand(300, dtype=torch.float64) - 1)
    logs = [each.to(dtype) for each in ((narrow, wide) if swapped else (wide, narrow))]
    with LargestTensor() as made:
        found = sum_log_by_nodes(logs[0], logs[1])
    assert found is not None
    assert made.entries < 0.3 * 401 * 300
    want, slopes = sum_of_logarithms(logs)
    assert found[0] == pytest.approx(float(want), rel=tolerance, abs=401 * 300 * tolerance)
    for mine, theirs in zip(found[1:], slopes, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=100 * tolerance)


def test_nodes_are_declined_where_they_would_not_do() -> None:
    near, small = torch.randn(300, 2, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    assert sum_log_by_nodes(near, small) is None  # no gain
    spread = torch.tensor([0.0, 1.0]).double() * torch.linspace(-WIDEST, WIDEST, 300).double().mul(1.01).unsqueeze(1)
    assert sum_log_by_nodes(spread, spread) is None  # both intervals wide
    far = torch.tensor([0.0, FARTHEST]).double().expand(300, 2)
    assert sum_log_by_nodes(far, torch.zeros_like(far)) is None
    assert sum_log_by_nodes(torch.full_like(far, -torch.inf), torch.zeros_like(far)) is None


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("spread", [0.1, 3.0])
@pytest.mark.parametrize("size", [(300, 200), (9, 7)])
def test_gradients_in_logarithms_of_any_rank(rank: int, spread: float, size: tuple[int, int]) -> None:
    logs = [spread * torch.randn(length, rank, dtype=torch.float64) - 2 for length in size]
    got = sum_log_with_gradient_in_logs(*logs, *(log.exp() for log in logs))
    want, slopes = sum_of_logarithms(logs)
    assert got[0] == pytest.approx(float(want), rel=1e-12)
    for mine, theirs in zip(got[1:], slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=0)


@pytest.mark.parametrize("spread", [0.0, 1.0, 20.0, 200.0])
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_logarithms_of_products_do_not_overflow(spread: float, rows: int) -> None:
    """Factors over e^±spread: beyond what products of entries can hold, logarithms are taken one by one."""
    left, right = ((spread * (2 * torch.rand(size, 2, dtype=torch.float64) - 1)).exp() for size in (257, 129))
    total, *slopes = sum_log_blocks(left, right, rows)
    product = left @ right.T
    torch.testing.assert_close(total, product.log().sum(), rtol=1e-12, atol=1e-6)
    wanted = [product.reciprocal() @ right, product.reciprocal().T @ left]
    for mine, theirs in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=0)


def test_logarithms_of_zero_are_what_torch_says() -> None:
    left, right = torch.rand(300, 2, dtype=torch.float64), torch.rand(200, 2, dtype=torch.float64)
    left[3] = 0
    assert sum_log_blocks(left, right, 50)[0] == -torch.inf
