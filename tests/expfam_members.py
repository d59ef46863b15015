"""Members of every exponential family, drawn at random inside its natural domain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from bayesrule.expfam import FAMILIES, Expectation, ExponentialFamily, Natural
from bayesrule.random import FromGenerator, Law

FAILURE_RATE = 1e-6
DOUBLE = torch.zeros((), dtype=torch.float64)
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)


@dataclass(frozen=True)
class Scaled:
    """Noise spread by a factor, to move λ away from the middle of Ω."""

    source: FromGenerator
    factor: float

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        return self.factor * self.source(shape, law, like)


def generator(seed: int) -> FromGenerator:
    return FromGenerator(torch.Generator().manual_seed(seed))


def member(
    family: ExponentialFamily, seed: int, batch: tuple[int, ...] = (), dim: int = 3, spread: float = 1.0
) -> Natural:
    noise = Scaled(generator(seed), spread)
    return family.check(family.random_natural(noise, DOUBLE, batch, dim=dim, classes=dim + 1, length=3))


def assert_same(got: Natural | Expectation, wanted: Natural | Expectation, tolerance: float) -> None:
    assert type(got) is type(wanted)
    assert_close(got.blocks, wanted.blocks, rtol=tolerance, atol=tolerance)
