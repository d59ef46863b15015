"""Where an estimator's noise comes from, where its gradients go, and many posteriors at once."""

from __future__ import annotations

import pytest
import torch
from estimator_cases import (
    ANY,
    DIAGONAL,
    ESTIMATORS,
    EXACT,
    RANDOM,
    accepted,
    close,
    example_of,
    posterior_of,
    recorded,
)
from layers import layer
from torch import Tensor
from torch.testing import assert_close

from bayesrule.estimators import Auto, LocalReparam, Mean, WeightSample
from bayesrule.random import FromGenerator, Law, Replay


def test_noise_is_the_callers() -> None:
    class Empty(list[Tensor]):
        """A source that is false as a condition."""

        def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
            return torch.zeros(shape, dtype=like.dtype)

    example, posterior = layer("linear"), posterior_of(DIAGONAL, "linear")
    for estimator in (WeightSample(), LocalReparam(), Auto()):
        silent = estimator(posterior, example.contraction, example.x, Empty())
        assert_close(silent, Mean()(posterior, example.contraction, example.x), **EXACT)


@pytest.mark.parametrize("estimator", RANDOM)
def test_noise_is_fresh_and_can_be_seeded(estimator: str) -> None:
    example, posterior = layer("linear"), posterior_of(DIAGONAL, "linear")

    def output(noise: FromGenerator | None = None) -> Tensor:
        return ESTIMATORS[estimator](posterior, example.contraction, example.x, noise)

    assert (output() != output()).all()
    seeded = [output(FromGenerator(torch.Generator().manual_seed(seed))) for seed in (1, 1, 2)]
    assert torch.equal(seeded[0], seeded[1])
    assert (seeded[0] != seeded[2]).all()


def differentiable(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.requires_grad_() for key, value in parameters.items()}


@pytest.mark.parametrize("layer_name", ["linear", "augmented-linear", "conv2d-stride", "conv2d-groups"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_are_finite_where_an_input_is_zero(estimator: str, layer_name: str) -> None:
    for name in accepted(estimator, layer_name):
        made, x = example_of(name, layer_name), layer(layer_name).x.clone()
        x[0] = 0
        leaves = differentiable(made.parameters) | {"x": x.requires_grad_()}
        output = ESTIMATORS[estimator](made.build(leaves), layer(layer_name).contraction, x)
        gradients = torch.autograd.grad(output.square().sum(), list(leaves.values()), allow_unused=estimator == "Mean")
        for key, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:  # the mean's output does not depend on a covariance
                assert gradient.isfinite().all(), (name, key)
                assert gradient.any(), (name, key)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_is_fixed_and_passes_no_gradient(estimator: str) -> None:
    example = layer("embedding-padding")
    for name in accepted(estimator, "embedding-padding", ANY):
        made = example_of(name, "embedding-padding")
        leaves = differentiable(made.parameters)
        posterior = made.build(leaves)
        output = ESTIMATORS[estimator](posterior, example.contraction, example.x)
        padding = example.x == example.contraction.padding_idx
        assert padding.sum() == 2
        close(output[padding], posterior.mean[example.contraction.padding_idx].expand(2, -1), name)
        if not output.requires_grad:  # binary weights have no gradient at all
            continue
        gradients = torch.autograd.grad(output[padding].sum(), list(leaves.values()), allow_unused=True)
        assert not any(gradient.any() for gradient in gradients if gradient is not None), name


@pytest.mark.parametrize("layer_name", ["linear", "augmented-linear"])
@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "Flipout"])
def test_many_posteriors_at_once(estimator: str, layer_name: str) -> None:
    """A dense layer under many posteriors is the layer under each. Flipout's signs count examples, not members."""
    example = layer(layer_name)
    for name in accepted(estimator, layer_name, ANY):
        made = example_of(name, layer_name)
        parameters = made.batch(3)
        together, tape = recorded(ESTIMATORS[estimator], made.build(parameters), example)
        for member, output in enumerate(together):
            alone = made.build({key: value[member] for key, value in parameters.items()})
            noises = [noise[member] if noise.numel() else noise for noise in tape.noises]
            close(output, ESTIMATORS[estimator](alone, example.contraction, example.x, Replay(noises)), name)
