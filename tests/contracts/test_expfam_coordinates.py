"""Natural and expectation coordinates: two vector spaces that do not mix."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch
from torch.testing import assert_close

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam import Expectation, GaussianFull, Natural, inner
from expfam_members import assert_same, member


def test_the_two_coordinate_systems_do_not_mix() -> None:
    natural, expectation = Natural(linear=torch.ones(2)), Expectation(linear=torch.ones(2))
    for mixed in (
        lambda: natural + expectation,
        lambda: natural - expectation,
        lambda: expectation + natural,
        lambda: natural + 1.0,
    ):
        with pytest.raises(TypeError, match="different spaces"):
            mixed()
    for wrong in (lambda: natural * natural, lambda: inner(expectation, natural), lambda: inner(natural, natural)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError, match="by a number only"):
        natural * torch.ones(2)


def test_arithmetic_needs_the_same_blocks() -> None:
    natural = Natural(linear=torch.ones(2))
    with pytest.raises(InvalidArgument, match="names"):
        natural + Natural(quadratic=torch.ones(2))
    with pytest.raises(ShapeMismatch, match="another shape"):
        natural + Natural(linear=torch.ones(1))


def test_arithmetic_is_that_of_a_vector_space() -> None:
    a, b = member(GaussianFull(), seed=18), member(GaussianFull(), seed=19)
    combined = 2 * a - b * 0.5 + torch.tensor(3.0) * -b
    for name, value in combined.items:
        assert_close(value, 2 * a[name] - 3.5 * b[name], rtol=1e-14, atol=1e-14)


def test_inner_product_keeps_the_batch() -> None:
    family, natural = GaussianFull(), member(GaussianFull(), seed=20, batch=(4,))
    expectation = family.to_expectation(natural)
    wanted = [
        (natural1 * expectation1).sum() + torch.trace(natural2 @ expectation2)
        for natural1, natural2, expectation1, expectation2 in zip(
            natural["linear"], natural["quadratic"], expectation["linear"], expectation["quadratic"], strict=True
        )
    ]
    assert_close(family.inner(natural, expectation), torch.stack(wanted), rtol=1e-12, atol=1e-12)
    assert_close(inner(natural, expectation), torch.stack(wanted).sum(), rtol=1e-12, atol=1e-12)


def test_points_are_frozen_and_can_be_copied() -> None:
    natural = Natural(linear=torch.ones(2, requires_grad=True) * 2, log=torch.zeros(()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        natural.items = ()
    natural.blocks.clear()
    assert natural.names == ("linear", "log")
    assert not natural.detach()["linear"].requires_grad
    for clone in (copy.deepcopy(natural.detach()), pickle.loads(pickle.dumps(natural.detach()))):
        assert_same(clone, natural.detach(), 0.0)
