"""Kernels against the formula they replace."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bayesrule.kernels import sum_log_product
from largest_tensor import LargestTensor

SHAPES = [((1, 1), (1, 1)), ((7, 2), (1, 2)), ((1, 3), (6, 3)), ((7, 2), (5, 2)), ((10, 4), (6, 4))]
BATCHES = [((3, 7, 2), (3, 5, 2)), ((2, 3, 4, 2), (2, 3, 5, 2)), ((7, 2), (3, 5, 2)), ((3, 1, 7, 2), (2, 5, 2))]
"""Also such as only broadcast."""


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64).add(0.1).requires_grad_()


def naive(left: Tensor, right: Tensor) -> Tensor:
    return (left @ right.mT).log().sum((-2, -1))


def set_chunk(monkeypatch: pytest.MonkeyPatch, entries: int) -> None:
    # By its full name, for the function hides the module of the same name.
    monkeypatch.setattr(importlib.import_module("bayesrule.kernels.sum_log_product"), "CHUNK_ENTRIES", entries)


def assert_equal_with_gradients(left: Tensor, right: Tensor) -> None:
    got, want = sum_log_product(left, right), naive(left, right)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(want)
    gradients = torch.autograd.grad(got, (left, right), cotangent)
    for mine, theirs in zip(gradients, torch.autograd.grad(want, (left, right), cotangent), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("entries", [1, 7, 12, 1 << 20])
@pytest.mark.parametrize(("left", "right"), SHAPES + BATCHES)
def test_value_and_gradients_whatever_the_chunks(
    monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...], right: tuple[int, ...], entries: int
) -> None:
    set_chunk(monkeypatch, entries)
    assert_equal_with_gradients(positive(*left), positive(*right))


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 90))
def test_value_and_gradients_of_any_shape(fan_in: int, fan_out: int, rank: int, entries: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_chunk(monkeypatch, entries)
        assert_equal_with_gradients(positive(fan_in, rank), positive(fan_out, rank))


@pytest.mark.parametrize(("left", "right"), [SHAPES[3], BATCHES[2]])
def test_gradcheck(monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    set_chunk(monkeypatch, 12)
    assert torch.autograd.gradcheck(sum_log_product, (positive(*left), positive(*right)))


def test_one_gradient_at_a_time() -> None:
    left, right = positive(7, 2), positive(5, 2)
    for wanted, fixed in ((left, right.detach()), (left.detach(), right)):
        free = wanted if wanted.requires_grad else fixed
        got, want = (torch.autograd.grad(function(wanted, fixed), free)[0] for function in (sum_log_product, naive))
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_vmap_and_vmapped_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    set_chunk(monkeypatch, 12)
    left, right = positive(4, 7, 2).detach(), positive(4, 5, 2).detach()
    torch.testing.assert_close(torch.func.vmap(sum_log_product)(left, right), naive(left, right), rtol=1e-12, atol=0)
    one_sided = torch.func.vmap(sum_log_product, in_dims=(0, None))(left, right[0])
    torch.testing.assert_close(one_sided, naive(left, right[0]), rtol=1e-12, atol=0)
    got = torch.func.vmap(torch.func.grad(sum_log_product, argnums=(0, 1)))(left, right)
    want = torch.func.vmap(torch.func.grad(naive, argnums=(0, 1)))(left, right)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("left", "right"), [((64, 3), (48, 3)), ((2, 32, 3), (2, 24, 3))])
def test_nothing_larger_than_a_chunk_is_made(
    monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    entries = 200
    set_chunk(monkeypatch, entries)
    factors = positive(*left), positive(*right)
    assert max(factor.numel() for factor in factors) <= entries
    with LargestTensor() as kernel:
        sum_log_product(*factors).sum().backward()
    with LargestTensor() as formula:
        naive(*factors).sum().backward()
    with LargestTensor() as second:
        gradients = torch.autograd.grad(sum_log_product(*factors).sum(), factors, create_graph=True)
        sum(gradient.square().sum() for gradient in gradients).backward()
    assert kernel.entries <= entries
    assert second.entries <= entries
    assert formula.entries > 5 * entries  # the count sees what the formula makes


def test_what_is_kept_for_the_gradient_is_as_large_as_the_factors() -> None:
    left, right = positive(64, 3), positive(48, 3)
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        sum_log_product(left, right)
    assert sum(kept) == 2 * (left.numel() + right.numel())  # the factors themselves, and their gradients


@pytest.mark.parametrize(("left", "right"), [SHAPES[3], SHAPES[1], BATCHES[0], BATCHES[2]])
def test_second_derivatives(monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    set_chunk(monkeypatch, 12)
    factors = positive(*left), positive(*right)
    assert torch.autograd.gradgradcheck(sum_log_product, factors)


@pytest.mark.parametrize("order", [2, 3])
def test_higher_derivatives_under_transforms(order: int) -> None:
    left, right = positive(3, 2).detach(), positive(4, 2).detach()

    def derivative(function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        derived: Callable[[Tensor], Tensor] = lambda x: function(x, right)  # noqa: E731
        for _ in range(order):
            derived = torch.func.jacrev(derived)
        return derived(left)

    torch.testing.assert_close(derivative(sum_log_product), derivative(naive), rtol=1e-9, atol=1e-9)
