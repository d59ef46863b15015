"""The pieces of the fused code: products of pairs, thin products, and logarithms in blocks."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from bayesrule.kernels.log_blocks import sum_log_blocks
from bayesrule.kernels.pairs import pair_products, pair_products_backward
from bayesrule.kernels.thin import MOST_VECTORS, outer_sum, thin_product

assert_equal = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_products_of_pairs_and_thin_products(rank: int) -> None:
    factor = random(6, rank)
    got = pair_products_backward(factor.detach(), 2.0, torch.ones(6, rank * (rank + 1) // 2, dtype=torch.float64))
    assert_equal(got, torch.autograd.grad(pair_products(factor, 2.0).sum(), factor)[0])
    for count in (rank, MOST_VECTORS + rank):
        vectors, others = random(count, 6).detach(), random(count, 4).detach()
        matrix = random(5, 6).detach()
        assert_equal(thin_product(matrix, vectors), matrix @ vectors.T)
        assert_equal(outer_sum(vectors, others), vectors.T @ others)


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
