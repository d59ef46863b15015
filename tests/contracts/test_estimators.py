"""What every estimator owes, on every layer and posterior: the law of ``op(x, W)``.

Given its signs an output is affine in its standard normals, ``y = c + R ε``. So its law is read off exactly: the mean
is ``c`` and the covariance ``R Rᵀ``, to be compared with ``J vec(mean)`` and ``J Σ Jᵀ`` where ``op(x, W) = J vec W``.
"""

from __future__ import annotations

import inspect
from functools import cache

import pytest
import torch
from estimator_cases import (
    ESTIMATORS,
    EXACT,
    POSTERIORS,
    RANDOM,
    accepted,
    close,
    every_layer,
    posterior_of,
    recorded,
    recordings,
    weight_law,
)
from examples import exported
from layers import Layer, layer
from torch import Tensor
from torch.testing import assert_close

from bayesrule import estimators
from bayesrule.estimators import Estimator
from bayesrule.posteriors import (
    BlockTridiagonalCovariance,
    CovarianceOperator,
    GaussianPosterior,
    PointPosterior,
    Posterior,
)
from bayesrule.random import Replay


@cache
def output_law(estimator: str, name: str, layer_name: str) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the estimator's flattened output, given its signs."""
    posterior, example = posterior_of(name, layer_name), layer(layer_name)
    torch.manual_seed(0)
    drawn, tape = recorded(ESTIMATORS[estimator], posterior, example)
    drawn, sizes = drawn.flatten(), [noise.numel() for noise in tape.normals]

    def output(normals: Tensor) -> Tensor:
        pieces = iter(normals.split(sizes))
        given = [
            next(pieces).reshape(noise.shape) if law == "normal" else noise
            for noise, law in zip(tape.noises, tape.laws, strict=True)
        ]
        return ESTIMATORS[estimator](posterior, example.contraction, example.x, Replay(given)).flatten()

    if not sum(sizes):
        return drawn, drawn.new_zeros(len(drawn), len(drawn))
    mean = output(drawn.new_zeros(sum(sizes)))
    root = torch.func.vmap(output)(torch.eye(sum(sizes), dtype=torch.float64)).mT - mean[:, None]
    normals = torch.cat([noise.flatten() for noise in tape.normals])
    assert_close(drawn, mean + root @ normals, **EXACT)
    return mean, root @ root.mT


def blocks(matrix: Tensor, positions: Tensor) -> Tensor:
    """(position, channel, channel): the covariance over the channels of each output row."""
    return matrix[positions[:, :, None], positions[:, None, :]]


def test_every_exported_estimator_takes_part() -> None:
    kinds = {getattr(estimators, name) for name in estimators.__all__}
    concrete = {kind for kind in kinds if issubclass(kind, Estimator) and not inspect.isabstract(kind)}
    assert {type(estimator) for estimator in ESTIMATORS.values()} == concrete


def test_every_exported_posterior_takes_part() -> None:
    made = [posterior_of(name, "conv2d-groups") for name in POSTERIORS]
    gaussian = [posterior for posterior in made if isinstance(posterior, GaussianPosterior)]
    kinds = {type(posterior) for posterior in made} | {type(q.covariance) for q in gaussian if q.event_dim == 2}
    elsewhere = {BlockTridiagonalCovariance}  # over a vector of several layers: no one layer's weight
    assert kinds == {*exported(Posterior), *exported(CovarianceOperator)} - elsewhere


@every_layer
@pytest.mark.parametrize("estimator", RANDOM)
def test_mean_and_covariance_over_the_channels_of_an_output_row(estimator: str, layer_name: str) -> None:
    positions = layer(layer_name).positions
    for name in accepted(estimator, layer_name):
        (got_mean, got), (mean, wanted) = output_law(estimator, name, layer_name), weight_law(name, layer_name)
        close(got_mean, mean, name)
        close(blocks(got, positions), blocks(wanted, positions), name)


@every_layer
def test_weight_sampling_keeps_the_covariance_of_the_whole_output(layer_name: str) -> None:
    for name in accepted("WeightSample", layer_name):
        close(output_law("WeightSample", name, layer_name)[1], weight_law(name, layer_name)[1], name)


@every_layer
def test_local_noise_is_independent_between_output_rows(layer_name: str) -> None:
    positions = layer(layer_name).positions
    for name in accepted("LocalReparam", layer_name):
        covariance = output_law("LocalReparam", name, layer_name)[1].clone()
        covariance[positions[:, :, None], positions[:, None, :]] = 0
        assert not covariance.any(), name


@every_layer
def test_flipout_keeps_the_covariance_between_the_positions_of_an_example(layer_name: str) -> None:
    example = layer(layer_name)
    inside = torch.arange(example.output.numel()).reshape(len(example.x) if example.batched else 1, -1)
    for name in accepted("Flipout", layer_name):
        got, wanted = output_law("Flipout", name, layer_name)[1], weight_law(name, layer_name)[1]
        close(blocks(got, inside), blocks(wanted, inside), name)


@every_layer
def test_the_mean_draws_nothing(layer_name: str) -> None:
    example = layer(layer_name)
    for name, posterior, output, tape in recordings("Mean", layer_name):
        close(output.flatten(), example.linear_map @ posterior.mean.flatten(), name)
        assert tape.noises == [], name


@every_layer
def test_weight_sampling_is_the_layer_at_the_draw(layer_name: str) -> None:
    example = layer(layer_name)
    for name, posterior, output, tape in recordings("WeightSample", layer_name):
        (noise,) = tape.noises
        assert tape.laws == [posterior.noise_law], name
        wanted = example.linear_map @ drawn_weight(posterior, example, noise).flatten()
        close(output.flatten(), torch.where(example.fixed, example.linear_map @ posterior.mean.flatten(), wanted), name)


def drawn_weight(posterior: Posterior, example: Layer, noise: Tensor) -> Tensor:
    """The weight of this noise; independent entries are drawn only in the rows that indices use."""
    if noise.shape == posterior.noise_shape:
        return posterior.from_noise(noise)
    assert posterior.independent
    used, weight = sorted(set(example.x.flatten().tolist())), posterior.mean.clone()
    weight[used] += posterior.variance[used].sqrt() * noise
    return weight


@every_layer
def test_a_point_has_no_noise_under_any_estimator(layer_name: str) -> None:
    example = layer(layer_name)
    point = PointPosterior(example.matrix, event_dim=2)
    for name, estimator in ESTIMATORS.items():
        close(estimator(point, example.contraction, example.x), example.output, name)
