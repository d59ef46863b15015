"""The block-tridiagonal covariance from moments against the dense Fisher matrix they stand for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import pytest
import torch
from dense_oracle import array, dense
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.posteriors import BlockTridiagonalCovariance
from bayesrule.posteriors.kronecker_chain import damp_factors

CHAINS = [((4, 3),), ((4, 3), (3, 2)), ((1, 4), (4, 1), (2, 3)), ((3, 4), (5, 2), (2, 2), (3, 1))]
"""Fan-in × fan-out of the layers: neighbours need not fit, as with a bias row or a reshape between them."""


@dataclass(frozen=True)
class Moments:
    """Second moments of correlated activations and gradients of all layers, side by side."""

    fan_in_moments: list[Tensor]
    fan_out_moments: list[Tensor]
    fan_in_cross: list[Tensor]
    fan_out_cross: list[Tensor]

    def operator(self, **options: float) -> BlockTridiagonalCovariance:
        return BlockTridiagonalCovariance.from_moments(*(getattr(self, f.name) for f in fields(self)), **options)


def correlated(sizes: list[int], seed: int, examples: int = 60) -> tuple[list[Tensor], list[Tensor]]:
    """Moments of features that share a factor, and the cross moments of neighbours."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(examples, 2, dtype=torch.float64, generator=generator)
    features = [
        shared @ torch.randn(2, size, dtype=torch.float64, generator=generator)
        + torch.randn(examples, size, dtype=torch.float64, generator=generator)
        for size in sizes
    ]
    own = [each.T @ each / examples for each in features]
    return own, [this.T @ following / examples for this, following in pairwise(features)]


def moments(chain: tuple[tuple[int, int], ...]) -> Moments:
    fan_in, fan_in_cross = correlated([layer[0] for layer in chain], 0)
    fan_out, fan_out_cross = correlated([layer[1] for layer in chain], 1)
    return Moments(fan_in, fan_out, fan_in_cross, fan_out_cross)


def spans(chain: tuple[tuple[int, int], ...]) -> list[slice]:
    ends = np.cumsum([0, *(m * n for m, n in chain)])
    return [slice(start, end) for start, end in pairwise(ends)]


def tridiagonal_fisher(own: Moments) -> list[list[np.ndarray | None]]:
    """F's blocks, Kronecker products of row-major vectors: fan-in first; None beyond the neighbours."""
    count = len(own.fan_in_moments)
    blocks: list[list[np.ndarray | None]] = [[None] * count for _ in range(count)]
    for layer in range(count):
        blocks[layer][layer] = np.kron(array(own.fan_in_moments[layer]), array(own.fan_out_moments[layer]))
    for this, following in pairwise(range(count)):
        blocks[this][following] = np.kron(array(own.fan_in_cross[this]), array(own.fan_out_cross[this]))
        blocks[following][this] = blocks[this][following].T
    return blocks


@pytest.mark.parametrize("chain", CHAINS, ids=len)
def test_its_inverse_is_fisher_on_the_tridiagonal_blocks(chain: tuple[tuple[int, int], ...]) -> None:
    own, place = moments(chain), spans(chain)
    covariance = dense(own.operator())
    precision = np.linalg.inv(covariance)
    for i, row in enumerate(tridiagonal_fisher(own)):
        for j, block in enumerate(row):
            if block is None:  # the chain's own: F̂ is dense, Σ is zero there
                assert np.abs(precision[place[i], place[j]]).max() > 1e-3
                assert np.abs(covariance[place[i], place[j]]).max() == 0
            else:
                np.testing.assert_allclose(precision[place[i], place[j]], block, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chain", CHAINS, ids=len)
def test_it_is_the_chain_of_conditionals(chain: tuple[tuple[int, int], ...]) -> None:
    """Ξ and Λ from dense blocks: Ψ = F_{l,l+1} F_{l+1,l+1}⁻¹, Λ_l = (F_ll − Ψ F_{l+1,l+1} Ψᵀ)⁻¹."""
    own, place = moments(chain), spans(chain)
    blocks = tridiagonal_fisher(own)
    xi, conditional = np.eye(place[-1].stop), np.zeros((place[-1].stop,) * 2)
    conditional[place[-1], place[-1]] = np.linalg.inv(blocks[-1][-1])
    for this, following in pairwise(range(len(chain))):
        psi = blocks[this][following] @ np.linalg.inv(blocks[following][following])
        xi[place[this], place[following]] = -psi
        remaining = blocks[this][this] - psi @ blocks[following][following] @ psi.T
        conditional[place[this], place[this]] = np.linalg.inv(remaining)
    want = xi.T @ conditional @ xi
    operator = own.operator()
    size = len(want)
    x = torch.randn(3, size, dtype=torch.float64)
    np.testing.assert_allclose(array(operator.dense()), want, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(array(operator.matmul(x)), array(x) @ want, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(array(operator.solve(x)), np.linalg.solve(want, array(x).T).T, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(array(operator.diagonal()), np.diag(want), rtol=1e-9)
    root = array(operator.sqrt_matmul(torch.eye(size, dtype=torch.float64))).T
    np.testing.assert_allclose(root @ root.T, want, rtol=1e-9, atol=1e-9)
    assert operator.logdet().item() == pytest.approx(np.linalg.slogdet(want)[1], rel=1e-9)


def test_the_coupling_acts_on_matrices_as_on_row_major_vectors() -> None:
    operator = moments(((4, 3), (3, 2))).operator()
    fan_in, fan_out = operator.couplings[0]
    following = torch.randn(3, 2, dtype=torch.float64)
    dense_psi = np.kron(array(fan_in), array(fan_out))
    np.testing.assert_allclose(array(fan_in @ following @ fan_out.mT).ravel(), dense_psi @ array(following).ravel())


def test_scale_multiplies_the_covariance() -> None:
    own = moments(((4, 3), (3, 2), (2, 2)))
    np.testing.assert_allclose(dense(own.operator(scale=0.01)), 0.01 * dense(own.operator()), rtol=1e-12, atol=1e-15)


def test_damping_is_that_of_the_factors() -> None:
    own = moments(((4, 3), (3, 2), (2, 2)))
    damped = [damp_factors(a, g, 0.3) for a, g in zip(own.fan_in_moments, own.fan_out_moments, strict=True)]
    again = Moments([a for a, _ in damped], [g for _, g in damped], own.fan_in_cross, own.fan_out_cross)
    np.testing.assert_allclose(dense(own.operator(damping=0.3)), dense(again.operator()), rtol=1e-12, atol=1e-15)


def test_factored_damping_balances_the_factors() -> None:
    """π² = (tr A / dim A) / (tr G / dim G); the product of the two dampings is γ."""
    own = moments(((4, 3),))
    fan_in, fan_out = (array(own.fan_in_moments[0]), array(own.fan_out_moments[0]))
    pi = np.sqrt(np.trace(fan_in) / 4 / (np.trace(fan_out) / 3))
    damped = damp_factors(own.fan_in_moments[0], own.fan_out_moments[0], 0.25)
    np.testing.assert_allclose(array(damped[0]), fan_in + pi * 0.5 * np.eye(4), rtol=1e-12)
    np.testing.assert_allclose(array(damped[1]), fan_out + 0.5 / pi * np.eye(3), rtol=1e-12)


def test_damping_a_zero_factor_is_even() -> None:
    zero, one = torch.zeros(2, 2, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    damped = damp_factors(zero, one, 0.25)
    torch.testing.assert_close(damped[0], 0.5 * torch.eye(2, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(damped[1], 1.5 * one, rtol=1e-12, atol=0)


def test_a_batch_of_chains_equals_one_by_one() -> None:
    first, second = moments(((4, 3), (3, 2))), moments(((4, 3), (3, 2)))
    second = Moments(*([2 * each for each in getattr(second, field.name)] for field in fields(second)))
    batched = Moments(*(
        [torch.stack(pair) for pair in zip(getattr(first, field.name), getattr(second, field.name), strict=True)]
        for field in fields(first)
    ))  # fmt: skip
    together = batched.operator(damping=0.1)
    assert together.shape == (2, 18)
    for index, single in enumerate((first, second)):
        np.testing.assert_allclose(
            array(together.dense()[index]), dense(single.operator(damping=0.1)), rtol=1e-9, atol=1e-12
        )


def test_moments_that_are_not_positive_definite_are_refused() -> None:
    own = moments(((4, 3), (3, 2)))
    singular = Moments([torch.ones(4, 4, dtype=torch.float64), own.fan_in_moments[1]], *list(vars(own).values())[1:])
    with pytest.raises(InvalidArgument, match=r"fan-in second moment.*Raise the damping"):
        singular.operator()


def test_cross_moments_of_other_examples_are_refused() -> None:
    own = moments(((4, 3), (3, 2)))
    foreign = Moments(
        own.fan_in_moments, own.fan_out_moments, [3 * own.fan_in_cross[0]], [3 * own.fan_out_cross[0]]
    )  # correlations above one
    with pytest.raises(InvalidArgument, match=r"given the next layer's.*same examples"):
        foreign.operator()


def test_layers_that_repeat_each_other_need_damping() -> None:
    own, _ = correlated([3], 0)
    twins = Moments(own * 2, own * 2, own, own)
    with pytest.raises(InvalidArgument, match="Raise the damping"):
        twins.operator()
    assert twins.operator(damping=1e-3).logdet().isfinite()


def test_lists_that_do_not_fit_are_refused() -> None:
    own = moments(((4, 3), (3, 2)))
    with pytest.raises(ShapeMismatch, match="L − 1 cross moments"):
        BlockTridiagonalCovariance.from_moments(own.fan_in_moments, own.fan_out_moments, [], own.fan_out_cross)
    with pytest.raises(InvalidArgument, match="negative"):
        own.operator(damping=-1.0)


def test_couplings_that_do_not_fit_the_layers_are_refused() -> None:
    operator = moments(((4, 3), (3, 2))).operator()
    fan_in, fan_out = operator.couplings[0]
    for couplings in ((), ((fan_out, fan_in),), ((fan_in.mT, fan_out.mT),)):
        with pytest.raises(ShapeMismatch, match="couplings"):
            BlockTridiagonalCovariance(operator.conditionals, couplings)
