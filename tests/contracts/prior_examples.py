"""Examples of every prior, each beside its definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from examples import GAUSSIANS, family_example, moved, noise
from numpy.typing import NDArray
from torch import Tensor

import bayesrule.priors as br
from bayesrule.posteriors import Family, GaussianPosterior, Part, Posterior
from bayesrule.priors import ARD, GroupARD, HeNormal, LearnedNormal, Normal, Prior, kl_divergence

Array = NDArray[np.float64]
Shape = tuple[int, ...]


def scales(*shape: int) -> Tensor:
    """Standard deviations between 0.3 and 1.3."""
    return 0.3 + torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def centres(*shape: int) -> Tensor:
    return noise(torch.Generator().manual_seed(4), *shape)


def column(shape: Shape) -> Shape:
    """One entry for each row."""
    return (shape[0], *(1,) * (len(shape) - 1))


def members(shape: Shape, axis: int) -> Array:
    """(entries, groups): 1 where an entry lies in a row (axis 0) or column (axis 1); a vector's entries stand alone."""
    size = shape[axis] if len(shape) > 1 else shape[0]
    labels = np.indices(shape)[axis if len(shape) > 1 else 0].ravel()
    return np.eye(size)[labels]


def rows_and_columns(shape: Shape) -> Array:
    """All columns but one, whose scale is that of the rows."""
    return members(shape, 0) if len(shape) == 1 else np.hstack([members(shape, 0), members(shape, 1)[:, 1:]])


@dataclass(frozen=True)
class PriorExample:
    """A prior for events of some shape, beside its definition.

    Attributes:
        name: Its name.
        make: The prior.
        std: The standard deviations of a fixed prior.
        mean: Their centre.
        design: The choice of a learned prior: its log-precisions are ``design @ h`` for some vector h.
    """

    name: str
    make: Callable[[Shape], Prior]
    std: Callable[[Shape], Tensor | float] | None = None
    mean: Callable[[Shape], Tensor | float] = lambda shape: 0.0
    design: Callable[[Shape], Array] | None = None

    def __str__(self) -> str:
        return self.name

    def hyperparameters(self, posterior: Posterior) -> dict[str, Tensor]:
        """Those the caller keeps, away from where they start."""
        start = self.make(tuple(posterior.event_shape)).hyperparameters(posterior)
        generator = torch.Generator().manual_seed(5)
        return {name: moved(value, generator, by=0.5) for name, value in start.items()}

    def kl(self, posterior: Posterior) -> Tensor:
        return kl_divergence(posterior, self.make(tuple(posterior.event_shape)), self.hyperparameters(posterior))

    def given(self, posterior: Posterior) -> br.DiagonalNormal:
        return self.make(tuple(posterior.event_shape)).given(posterior, self.hyperparameters(posterior))


FIXED = [
    PriorExample("Normal", lambda shape: Normal(0.7), std=lambda shape: 0.7),
    PriorExample("Normal by entry", lambda shape: Normal(scales(*shape)), std=lambda shape: scales(*shape)),
    PriorExample(
        "Normal by row", lambda shape: Normal(scales(*column(shape))), std=lambda shape: scales(*column(shape))
    ),
    PriorExample("Normal by column", lambda shape: Normal(scales(shape[-1])), std=lambda shape: scales(shape[-1])),
    PriorExample(
        "Normal around weights",
        lambda shape: Normal(0.4, mean=centres(*shape)),
        std=lambda shape: 0.4,
        mean=lambda shape: centres(*shape),
    ),
    PriorExample(
        "HeNormal", lambda shape: HeNormal(), std=lambda shape: math.sqrt(2 / shape[0]) if len(shape) > 1 else 1.0
    ),
    PriorExample(
        "HeNormal by gain",
        lambda shape: HeNormal(gain=0.8, bias_std=0.3),
        std=lambda shape: 0.8 / math.sqrt(shape[0]) if len(shape) > 1 else 0.3,
    ),
]
CLOSED_FORM = [
    PriorExample("LearnedNormal", lambda shape: LearnedNormal(), design=lambda shape: np.ones((math.prod(shape), 1))),
    PriorExample(
        "LearnedNormal around 0.3",
        lambda shape: LearnedNormal("model", mean=0.3),
        mean=lambda shape: 0.3,
        design=lambda shape: np.ones((math.prod(shape), 1)),
    ),
    PriorExample("ARD", lambda shape: ARD(), design=lambda shape: np.eye(math.prod(shape))),
    PriorExample("GroupARD row", lambda shape: GroupARD("row"), design=lambda shape: members(shape, 0)),
    PriorExample("GroupARD column", lambda shape: GroupARD("column"), design=lambda shape: members(shape, 1)),
    PriorExample("GroupARD both", lambda shape: GroupARD("both", iterations=200), design=rows_and_columns),
    PriorExample("GroupARD channel", lambda shape: GroupARD("channel"), design=lambda shape: members(shape, 0)),
]
BY_GRADIENT = [
    PriorExample(f"GroupARD {group} by gradient", lambda shape, group=group: GroupARD(group, learn="gradient"))
    for group in ("row", "column", "both", "channel")
]
PRETRAINED = PriorExample("Normal around the start", lambda shape: Normal(0.4, mean="pretrained"))
PRIORS = [*FIXED, *CLOSED_FORM, *BY_GRADIENT, PRETRAINED]
every_prior = pytest.mark.parametrize("prior", PRIORS, ids=str)
EXACT = [example for example in GAUSSIANS if example.operator.exact_logdet]


def posterior_of(family: Family, shape: Shape, parts: tuple[Part, ...] = ()) -> GaussianPosterior:
    example = family_example(family, shape)
    assert example is not None
    found = example.posterior
    assert isinstance(found, GaussianPosterior)
    return GaussianPosterior(found.mean, found.covariance, parts)
