"""A drawn k-tied weight as one node on a CPU: against the general path, the formula, and numerical derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bayesrule as br
from bayesrule.kernels import ParameterTap, StoredParameters, ktied_weight
from bayesrule.posteriors.ktied import KTiedCovariance
from bayesrule.random import FromGenerator, Replay

SIZES = [(1, 1, 1), (7, 3, 1), (3, 9, 2), (13, 6, 3), (900, 2, 2)]
"""Fan-in, fan-out and rank; so long a row is not multiplied as a matrix."""


def stored_and_noise(fan_in: int, fan_out: int, rank: int) -> tuple[StoredParameters, Tensor]:
    generator = torch.Generator().manual_seed(fan_in)
    shapes = (fan_out, fan_in), (fan_in, rank), (fan_out, rank), (fan_in, fan_out)
    *free, noise = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return StoredParameters(tuple(nn.Parameter(tensor) for tensor in free), ParameterTap()), noise


def drawn(stored: StoredParameters, noise: Tensor) -> Tensor:
    weight = ktied_weight(stored, noise)
    assert weight is not None
    return weight


@pytest.mark.parametrize("size", SIZES)
def test_the_draw_and_its_gradients_are_those_of_the_dense_formula(size: tuple[int, int, int]) -> None:
    stored, noise = stored_and_noise(*size)
    mean, fan_in, fan_out = stored.parameters
    want = mean.T + (fan_in.exp() @ fan_out.exp().T) * noise
    got = drawn(stored, noise)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
    cotangent = torch.randn_like(want)
    for mine, theirs in zip(*(torch.autograd.grad(w, stored.parameters, cotangent) for w in (got, want)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_numerical_derivatives_of_first_and_second_order() -> None:
    stored, noise = stored_and_noise(4, 3, 2)
    free = stored.parameters

    def draw(*parameters: Tensor) -> Tensor:
        return drawn(StoredParameters(parameters, ParameterTap()), noise)

    assert torch.autograd.gradcheck(draw, free)
    assert torch.autograd.gradgradcheck(draw, free)


@pytest.mark.parametrize("frozen", [(0,), (1,), (1, 2)], ids=str)
def test_a_parameter_that_needs_no_gradient_gets_none(frozen: tuple[int, ...]) -> None:
    stored, noise = stored_and_noise(5, 4, 2)
    for index in frozen:
        stored.parameters[index].requires_grad_(False)
    mean, fan_in, fan_out = stored.parameters
    free = [parameter for parameter in stored.parameters if parameter.requires_grad]
    want = torch.autograd.grad((mean.T + (fan_in.exp() @ fan_out.exp().T) * noise).square().sum(), free)
    drawn(stored, noise).square().sum().backward()
    assert all(stored.parameters[index].grad is None for index in frozen)
    for parameter, slope in zip(free, want, strict=True):
        torch.testing.assert_close(parameter.grad, slope, rtol=1e-12, atol=1e-12)


def network(estimator: br.Estimator) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    return br.bayesianize(net, br.KTied(2, 0.3), br.Normal(0.5), estimator)


def step(bnn: nn.Module, x: Tensor, way: str) -> list[Tensor]:
    bnn.zero_grad()
    torch.manual_seed(3)
    output = checkpoint(bnn, x, use_reentrant=False) if way == "checkpointed" else bnn(x)
    loss = output.square().mean()
    if way == "twice":
        loss = loss + bnn(2 * x).square().mean()
    if way == "another term":
        loss = loss + torch.stack([parameter.square().sum() for parameter in bnn.parameters()]).sum()
    (loss + br.kl(bnn) / 100).backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in bnn.parameters() if parameter.grad is not None)]


@pytest.mark.parametrize("way", ["once", "twice", "checkpointed", "another term"])
def test_a_step_is_that_of_the_general_form(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    bnn, x = network(br.WeightSample()), torch.randn(5, 9, dtype=torch.float64)
    got = step(bnn, x, way)
    monkeypatch.setattr(KTiedCovariance, "fused_draw", lambda *_: None)
    want = step(bnn, x, way)
    assert len(got) == 1 + len(list(bnn.parameters()))
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_a_layer_s_gradient_is_not_changed_by_what_the_kl_adds() -> None:
    bnn, seen = network(br.WeightSample()), []
    with bnn.draws.root():
        weight = next(module for module in bnn.modules() if isinstance(module, nn.Linear)).weight
        weight.register_hook(seen.append)
        ((3 * weight).sum() + br.kl(bnn)).backward()
    assert torch.equal(seen[0], torch.full_like(weight, 3.0))


def test_where_the_general_form_serves() -> None:
    stored, noise = stored_and_noise(5, 4, 2)
    assert ktied_weight(stored, noise.expand(3, 5, 4)) is None
    assert ktied_weight(stored, noise.float()) is None
    with torch.no_grad():
        assert not drawn(stored, noise).requires_grad


@pytest.mark.parametrize("kernel", [None, 3], ids=["dense", "convolution"])
def test_noise_lies_as_the_weight_does(kernel: int | None) -> None:
    """Where that is its matrix transposed; else, and from a source of one's own, as the event does."""
    layer = nn.Linear(9, 12) if kernel is None else nn.Conv2d(1, 12, kernel)
    posterior = br.bayesianize(layer, br.KTied(2)).posteriors()["weight"]
    torch.manual_seed(1)
    noise = posterior.noise_from(FromGenerator())
    torch.manual_seed(1)
    flat = torch.randn(9 * 12)
    assert noise.shape == (9, 12)
    assert torch.equal(noise, flat.view(12, 9).T if kernel is None else flat.view(9, 12))
    own = posterior.noise_from(Replay([torch.arange(108.0).view(9, 12)]))
    assert torch.equal(own, torch.arange(108.0).view(9, 12))
