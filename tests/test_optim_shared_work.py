"""What makes a step cheap, against the plain way to compute it."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.curvature import gram, lower_matmul, sampled_cotangents
from bayesrule.optim.kronecker_inverse import EigenInverse, FactoredInverse, inverse_root
from bayesrule.optim.messages import Gathered, finite_check
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.optim.rule import Message, PriorTerm
from bayesrule.random import Replay

SIZES = [3, 256, 257, 400]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def positive(size: int, seed: int = 0) -> Tensor:
    root = normal(size, size, seed=seed)
    return root @ root.mT + torch.eye(size, dtype=torch.float64)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_with_a_triangle(size: int, transposed: bool) -> None:
    lower = normal(size, size).tril()
    x = normal(7, size, seed=1).mT if transposed else normal(size, 7, seed=1)
    np.testing.assert_allclose(lower_matmul(lower, x), lower.numpy() @ x.numpy(), rtol=0, atol=1e-12 * size)


@pytest.mark.parametrize("size", SIZES)
def test_second_moments_by_their_triangle(size: int) -> None:
    rows = normal(11, size)
    found = gram(rows, 0.25)
    np.testing.assert_allclose(found, rows.numpy().T @ rows.numpy() / 4, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1, 5, 300])
def test_the_root_of_an_inverse_is_its_cholesky_factor(size: int) -> None:
    matrix = positive(size)
    want = np.linalg.cholesky(np.linalg.inv(matrix.numpy()))
    np.testing.assert_allclose(inverse_root(matrix), want, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(inverse_root(matrix).triu(1), 0.0)


@pytest.mark.parametrize("extra", [0.0, 0.3])
def test_steps_and_draws_of_one_matrix_and_of_a_batch(extra: float) -> None:
    """One matrix is multiplied as its layer's weight lies in memory, a batch as it is: the same numbers."""
    a, s, damping = positive(6), positive(4, seed=1), torch.tensor(0.2, dtype=torch.float64)
    x = normal(6, 4, seed=2)
    for one, many in (
        (FactoredInverse.of(a, s, damping, extra), FactoredInverse.of(a[None], s[None], damping, extra)),
        (EigenInverse.of(a, s), EigenInverse.of(a[None], s[None])),
    ):
        for guarded in (False, True):
            single, batched = (
                each.step(y, damping, guarded=guarded) for each, y in ((one, x), (many, x[None]))
            )  # fmt: skip
            torch.testing.assert_close(single, batched[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(one.deviation(x, damping), many.deviation(x[None], damping)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrong", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("other", [torch.float32, torch.float64, torch.bfloat16])
def test_one_entry_that_is_not_finite_is_found(wrong: float | None, other: torch.dtype) -> None:
    first, second = torch.full((5, 3), 1e30), torch.ones(4, dtype=other)
    if wrong is not None:
        second[2] = wrong
    assert finite_check([first, second])() == (wrong is None)


def test_passes_of_different_sizes_have_their_weight() -> None:
    first, second = Gathered(), Gathered()
    for gathered, values in ((first, [(1.0, 10), (4.0, 5)]), (second, [(7.0, 30)])):
        for value, examples in values:
            gathered.add_curvature("w", {"squares": torch.tensor([value])}, examples)
    first.merge(second)
    found = first.curvature("w")
    assert found is not None
    assert found["squares"].item() == pytest.approx((10 * 1 + 5 * 4 + 30 * 7) / 45, rel=1e-6)
    assert first.curvature("other") is None


@pytest.mark.parametrize("max_kl", [None, 1e-6])
def test_groups_together_are_the_groups_one_by_one(max_kl: float | None) -> None:
    rule = NoisyKFACRule(momentum=0.5, max_kl=max_kl)
    tasks = []
    for seed, (m, n) in enumerate([(3, 2), (5, 4)]):
        mean, prior = normal(m, n, seed=seed), PriorTerm(torch.tensor(0.1 + seed, dtype=torch.float64))
        curvature = {"fan_in": positive(m), "fan_out": positive(n)}
        state = rule.init(mean, [(m, n)], prior.damping)
        tasks.append((mean, state, Message(normal(m, n, seed=9), curvature), prior))
    together = rule.updates(tasks, lr=0.5, refresh=True)
    for (mean, new), task in zip(together, tasks, strict=True):
        want, state = rule.update(*task, lr=0.5, refresh=True)
        torch.testing.assert_close(mean, want, rtol=0, atol=1e-14)
        assert int(new.limited) == int(state.limited) == (max_kl is not None)
        for field in fields(state):
            if isinstance(getattr(state, field.name), Tensor):
                torch.testing.assert_close(getattr(new, field.name), getattr(state, field.name), rtol=0, atol=1e-14)


def test_the_classes_cotangents_are_the_gradients_of_their_loss() -> None:
    outputs, uniform = normal(50, 4), torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    free = outputs.clone().requires_grad_()
    targets = br.Categorical().sample(outputs, Replay([uniform]))
    (want,) = torch.autograd.grad(F.cross_entropy(free, targets, reduction="sum"), free)
    (found,) = sampled_cotangents(br.Categorical(), outputs, Replay([uniform]))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-14)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    """Also at a step whose update needs no inverse, where it is noticed after the update was computed."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    optimizer = br.optim.NoisyKFAC(net, n_data=10, likelihood=br.Categorical(), T_stats=8, T_inv=8, seed=0)
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    for factor in (1.0, 1.0, math.nan):  # steps 1 and 2 have curvature, step 3 has not
        with optimizer.sampled_params():
            optimizer.zero_grad()
            (F.cross_entropy(net(x), y) * factor).backward()
        if factor == 1.0:
            optimizer.step()
    before, states = net.weight.detach().clone(), dict(optimizer.states)
    with pytest.raises(br.errors.InvalidArgument, match="not finite"):
        optimizer.step()
    assert torch.equal(net.weight, before)
    assert optimizer.states == states
    assert optimizer.steps == 2
