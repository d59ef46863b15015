"""Every estimator, and every posterior over the weight of every layer, with the exact law of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import pytest
import torch
from examples import (
    Example,
    bernoulli,
    clipped,
    eigen_kronecker,
    families,
    family_example,
    mixture,
    restricted,
    turned_eigen_kronecker,
)
from layers import NAMES, Layer, layer
from noise_tape import Tape
from torch import Tensor
from torch.testing import assert_close

from bayesrule import estimators
from bayesrule.contractions import Contraction
from bayesrule.estimators import Estimator
from bayesrule.posteriors import Family, GaussianPosterior, KTied, MatrixNormal, PointPosterior, Posterior

EXACT = {"rtol": 1e-10, "atol": 1e-12}
GAUSSIAN = (GaussianPosterior, PointPosterior)
ANY = (Posterior,)
Shape = tuple[int, int]
every_layer = pytest.mark.parametrize("layer_name", NAMES)

ESTIMATORS = {name: getattr(estimators, name)() for name in estimators.__all__ if name != "Estimator"}
RANDOM = [name for name in ESTIMATORS if name != "Mean"]
DIAGONAL = "Diagonal(init_std=0.5, init_spread=0.1)"


def rank(family: Family) -> int:
    return family.rank if isinstance(family, KTied) else 0


POSTERIORS: dict[str, Callable[[Shape], Example | None]] = {
    **{str(family): partial(family_example, family) for family in families() if rank(family) <= 2},
    "ClippedLowRank": clipped,
    "EigenKronecker": eigen_kronecker,
    "TurnedEigenKronecker": turned_eigen_kronecker,
    "Restricted(KTied)": lambda shape: restricted(KTied(1, 0.5), (shape[0] + 2, shape[1]), 1, shape[0]),
    "Restricted(MatrixNormal)": lambda shape: restricted(MatrixNormal(0.5), (shape[0] + 2, shape[1]), 1, shape[0]),
    "Mixture": mixture,
    "Bernoulli": bernoulli,
}
"""Every posterior over a matrix, for a matrix of any shape; None where a rank is above it."""


def example_of(name: str, layer_name: str) -> Example | None:
    """A posterior over the weight of a layer, as a function of its parameters."""
    return POSTERIORS[name](tuple(layer(layer_name).matrix.shape))


@cache
def posterior_of(name: str, layer_name: str) -> Posterior | None:
    example = example_of(name, layer_name)
    return None if example is None else example.posterior


@cache
def weight_law(name: str, layer_name: str) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the whole flattened output, by the dense covariance of the weight."""
    posterior, linear_map = posterior_of(name, layer_name), layer(layer_name).linear_map
    mean = linear_map @ posterior.mean.flatten()
    linear_map = linear_map.masked_fill(layer(layer_name).fixed[:, None], 0)
    if isinstance(posterior, PointPosterior):
        return mean, torch.zeros(len(mean), len(mean), dtype=torch.float64)
    return mean, linear_map @ posterior.covariance.dense() @ linear_map.mT


def recorded(estimator: Estimator, posterior: Posterior, example: Layer) -> tuple[Tensor, Tape]:
    """A layer's output, and the noise that went into it."""
    tape = Tape()
    return estimator(posterior, example.contraction, example.x, tape), tape


def refuses(estimator: str, posterior: Posterior, contraction: Contraction) -> bool:
    """What `test_what_is_refused` pins, structure by structure."""
    if estimator == "Flipout":
        return not posterior.independent
    return estimator == "LocalReparam" and not posterior.projects(contraction)


def close(got: Tensor, wanted: Tensor, name: str) -> None:
    assert_close(got, wanted, **EXACT, msg=lambda detail: f"{name}: {detail}")


def accepted(estimator: str, layer_name: str, kinds: tuple[type[Posterior], ...] = GAUSSIAN) -> list[str]:
    """Posteriors an estimator takes on a layer, without ranks above the matrix and without refusals."""
    made = {name: posterior_of(name, layer_name) for name in POSTERIORS}
    contraction = layer(layer_name).contraction
    return [name for name, q in made.items() if isinstance(q, kinds) and not refuses(estimator, q, contraction)]


def recordings(estimator: str, layer_name: str) -> Iterator[tuple[str, Posterior, Tensor, Tape]]:
    """Every posterior an estimator takes on a layer, of any law, by its name, with the output and its noise."""
    for name in accepted(estimator, layer_name, ANY):
        posterior = posterior_of(name, layer_name)
        yield name, posterior, *recorded(ESTIMATORS[estimator], posterior, layer(layer_name))
