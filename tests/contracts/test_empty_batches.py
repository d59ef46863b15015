"""Batches without examples: every estimator takes them, as plain layers do, and gives gradients of zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from estimator_cases import ANY, ESTIMATORS, accepted, example_of
from layers import NAMES, layer
from torch import Tensor, nn

import bayesrule as br
from bayesrule.estimators import Estimator, LocalReparam

PLAIN: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (0, 4)),
    "linear-wide": (lambda: nn.Linear(200, 100), (0, 200)),
    "linear-sequences": (lambda: nn.Linear(4, 3), (0, 5, 4)),
    "linear-sequences-of-nothing": (lambda: nn.Linear(4, 3), (2, 0, 4)),
    "conv2d": (lambda: nn.Conv2d(4, 3, 2), (0, 4, 5, 5)),
    "conv-transpose2d": (lambda: nn.ConvTranspose2d(4, 3, 2), (0, 4, 5, 5)),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("name", [name for name in NAMES if layer(name).batched])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_takes_an_empty_batch(estimator: str, name: str) -> None:
    example = layer(name)
    want = example.module(example.x[:0])
    for posterior in accepted(estimator, name, ANY):
        made, x = example_of(posterior, name), example.x[:0].clone()
        leaves = {key: value.requires_grad_() for key, value in made.parameters.items()}
        output = ESTIMATORS[estimator](made.build(leaves), example.contraction, x)
        assert (output.shape, output.dtype) == (want.shape, want.dtype), posterior
        if output.requires_grad:  # binary weights have no gradient at all
            found = torch.autograd.grad(output.sum(), list(leaves.values()), allow_unused=True)
            assert not any(gradient.any() for gradient in found if gradient is not None), posterior


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", ["diagonal", "point", "augment"])
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=list(ESTIMATORS))
def test_converted_layers(estimator: Estimator, kind: str, bias: Any, device: str) -> None:
    """In float32, with whatever fused code there is."""
    make, shape = PLAIN[kind]
    net, x = make().to(device), torch.randn(shape, device=device, requires_grad=True)
    want = net(x)
    for family in (br.Diagonal(), br.KTied(2), br.MatrixNormal(), br.MatrixNormalDiagonal()):
        try:
            bnn = br.bayesianize(net, family, estimator=estimator, bias=bias)
        except br.errors.Unsupported:
            continue  # Flipout, of entries that are not independent
        output = bnn(x)
        assert output.shape == want.shape
        (output.sum() + br.kl(bnn)).backward()
        twin = br.bayesianize(net, family, estimator=estimator, bias=bias)
        twin.load_state_dict(bnn.state_dict())
        br.kl(twin).backward()
        for got, alone in zip(bnn.parameters(), twin.parameters(), strict=True):
            if alone.grad is not None:  # a batch of nothing adds nothing to the KL's gradient
                torch.testing.assert_close(got.grad, alone.grad)


def test_an_empty_batch_leaves_the_next_one_as_it_is() -> None:
    bnn = br.bayesianize(nn.Linear(4, 3), br.KTied(2), estimator=LocalReparam())
    assert bnn(torch.zeros(0, 4)).shape == (0, 3)
    output: Tensor = bnn(torch.randn(2, 4))
    assert output.std(0).gt(0).all()
