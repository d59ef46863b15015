"""Errors of layers and estimators: what was wrong, what was got, and what to do instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayesrule import Auto, Flipout, LocalReparam, Mean, WeightSample
from bayesrule.contractions import Augmented, Contraction, Conv, ConvTranspose, Embedding, Linear
from bayesrule.errors import BayesruleError, InvalidArgument, ShapeMismatch, Unsupported, check_tensors
from bayesrule.estimators import Estimator
from bayesrule.posteriors import (
    Diagonal,
    EigenKroneckerCovariance,
    Family,
    Full,
    GaussianPosterior,
    MatrixNormal,
    MatrixNormalDiagonal,
    Posterior,
)
from bayesrule.train.active_learning import active_learning
from bayesrule.train.replicas import Replicas

LINEAR = Linear.of(nn.Linear(4, 3))
CONV = Conv.of(nn.Conv2d(4, 6, 3))
GROUPED = Conv.of(nn.Conv2d(4, 6, 3, groups=2))
TRANSPOSED = ConvTranspose.of(nn.ConvTranspose1d(4, 6, 3, groups=2))
EMBEDDING = Embedding.of(nn.Embedding(5, 3))

every_estimator = pytest.mark.parametrize("estimator", [Auto(), Flipout(), LocalReparam(), Mean(), WeightSample()])


def posterior(family: Family, contraction: Contraction) -> Posterior:
    mean = torch.zeros(contraction.view.fan_in, contraction.view.fan_out)
    return family.build(family.init(mean), event_dim=2)


def parts(error: BayesruleError) -> tuple[str, str, str]:
    """What was wrong, what was got and the remedy; all three are in the message."""
    assert all(part in str(error) for part in (error.what, str(error.got), error.remedy))
    return error.what, str(error.got), error.remedy


def test_arrays_in_place_of_tensors() -> None:
    check_tensors({"x": torch.zeros(2), "y": torch.zeros(2)})
    with pytest.raises(InvalidArgument) as error:
        check_tensors({"x": torch.zeros(2), "y": np.zeros(2)}, "Or stack them.")
    assert parts(error.value) == ("y must be one tensor", "ndarray", "Give torch.as_tensor(y). Or stack them.")


@pytest.mark.parametrize(
    "call",
    [
        lambda y: inspect.unwrap(active_learning)(None, torch.zeros(2, 1), y),
        lambda y: inspect.unwrap(Replicas.__init__)(object.__new__(Replicas), torch.zeros(1, 2, 1), y, seeds=[0]),
    ],
    ids=["active learning", "replicas"],
)
def test_arrays_are_refused_in_the_same_words(call: Callable[[object], object]) -> None:
    with pytest.raises(InvalidArgument, match=r"must be one tensor\. Got: ndarray\. Give torch\.as_tensor"):
        call(np.zeros((2, 1)))


@every_estimator
@pytest.mark.parametrize(
    ("contraction", "shape", "what"),
    [
        (LINEAR, (2, 5), "Linear takes 4 channels in dimension -1"),
        (Augmented(LINEAR), (2, 5), "Linear takes 4 channels in dimension -1"),
        (CONV, (2, 5, 5, 5), "Conv takes 4 channels in dimension -3"),
        (CONV, (4,), "Conv takes 4 channels in dimension -3"),
        (GROUPED, (2, 2, 5, 5), "Conv takes 4 channels in dimension -3"),
        (TRANSPOSED, (2, 5, 4), "ConvTranspose takes 4 channels in dimension -2"),
        (TRANSPOSED, (4,), "ConvTranspose takes 4 channels in dimension -2"),
    ],
)
def test_channels_that_do_not_fit(
    estimator: Estimator, contraction: Contraction, shape: tuple[int, ...], what: str
) -> None:
    with pytest.raises(ShapeMismatch) as error:
        estimator(posterior(Diagonal(), contraction), contraction, torch.zeros(shape))
    assert parts(error.value)[:2] == (what, f"an input of shape {shape}")


@every_estimator
def test_float_indices(estimator: Estimator) -> None:
    with pytest.raises(InvalidArgument, match=r"An embedding takes integer indices\. Got: dtype torch\.float32"):
        estimator(posterior(Diagonal(), EMBEDDING), EMBEDDING, torch.ones(2))


@pytest.mark.parametrize(
    ("contraction", "x"),
    [
        (GROUPED, torch.zeros(2, 4, 5, 5)),
        (TRANSPOSED, torch.zeros(2, 4, 5)),
        (EMBEDDING, torch.zeros(2, dtype=torch.int64)),
    ],
)
def test_many_weights_where_only_one_is_taken(contraction: Contraction, x: Tensor) -> None:
    for apply in (contraction, contraction.widen):
        with pytest.raises(Unsupported) as error:
            apply(x, torch.zeros(7, contraction.view.fan_in, contraction.view.fan_out))
        what, got, remedy = parts(error.value)
        assert what == f"{type(contraction).__name__} takes one fan-in × fan-out matrix"
        assert got.startswith(f"shape (7, {contraction.view.fan_in}, ")
        assert remedy == "Map over many weights with torch.func.vmap."


# Correlated posteriors


@pytest.mark.parametrize(
    ("family", "structure", "remedy"),
    [
        (MatrixNormal(), "MatrixNormalCovariance", "LocalReparam or WeightSample"),
        (MatrixNormalDiagonal(), "MatrixNormalKroneckerDiagonalCovariance", "LocalReparam or WeightSample"),
        (MatrixNormalDiagonal("free"), "MatrixNormalFreeDiagonalCovariance", "LocalReparam or WeightSample"),
        (Full(), "FullCovariance", "WeightSample"),
    ],
)
def test_flipout_of_a_correlated_posterior(family: Family, structure: str, remedy: str) -> None:
    with pytest.raises(Unsupported) as error:
        Flipout()(posterior(family, LINEAR), LINEAR, torch.ones(2, 4))
    assert parts(error.value) == (
        "Flipout needs a posterior with independent entries, symmetric about their mean",
        structure,
        f"Use the {remedy} estimator, or the Diagonal or KTied family.",
    )


def test_local_noise_of_a_full_covariance() -> None:
    with pytest.raises(
        Unsupported, match=r"FullCovariance has no cheap law .*\(local reparameterization\).*WeightSample"
    ):
        LocalReparam()(posterior(Full(), LINEAR), LINEAR, torch.ones(2, 4))


@pytest.mark.parametrize("contraction", [GROUPED, TRANSPOSED, Augmented(GROUPED)])
@pytest.mark.parametrize("structure", ["MatrixNormal", "EigenKronecker"])
def test_local_noise_of_a_factored_covariance_over_groups(structure: str, contraction: Contraction) -> None:
    mean = torch.zeros(contraction.view.fan_in, contraction.view.fan_out)
    factors = torch.eye(mean.shape[0]), torch.eye(mean.shape[1])
    refused = {
        "MatrixNormal": posterior(MatrixNormal(), contraction),
        "EigenKronecker": GaussianPosterior(mean, EigenKroneckerCovariance(*factors, torch.ones_like(mean))),
    }[structure]
    x = torch.ones(2, 4, 5) if contraction is TRANSPOSED else torch.ones(2, 4, 5, 5)
    with pytest.raises(Unsupported) as error:
        LocalReparam()(refused, contraction, x)
    what, got, remedy = parts(error.value)
    assert what.startswith(f"{structure}Covariance has no cheap law for the outputs of this layer")
    assert got == "a layer of 2 groups"
    assert remedy == "Use the WeightSample estimator for this layer."
