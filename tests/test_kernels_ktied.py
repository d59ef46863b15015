"""The fused k-tied layer and KLs on a CPU: against the general path, formulas, and numerical derivatives."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import bayesrule as br
from bayesrule.contractions import Linear
from bayesrule.estimators import LocalReparam
from bayesrule.kernels import diagonal_divergence, ktied_divergence
from bayesrule.kernels.ktied_linear import ktied_linear, ktied_linear_reference
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import GaussianPosterior
from bayesrule.posteriors.ktied import KTiedCovariance
from bayesrule.priors import kl_divergence
from bayesrule.random import Replay
from ktied_problems import Subtle, assert_all_close, positive, random, step
from largest_tensor import LargestTensor

SIZES = [(1, 1, 1, 1), (5, 7, 3, 1), (4, 3, 9, 2), (11, 13, 6, 3), (3, 8, 8, 5)]
"""Rows, fan-in, fan-out and rank; five columns have more pairs than are multiplied one by one."""


def layer_inputs(rows: int, fan_in: int, fan_out: int, rank: int) -> tuple[Tensor, ...]:
    noise = random(rows, fan_out).detach()
    return random(rows, fan_in), random(fan_out, fan_in), random(fan_in, rank), random(fan_out, rank), noise


def gradients(output: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(output.shape, dtype=output.dtype, generator=generator)
    return list(torch.autograd.grad(output, inputs, cotangent))


@pytest.mark.parametrize("size", SIZES)
def test_the_layer_and_its_gradients_are_those_of_the_dense_formula(size: tuple[int, int, int, int]) -> None:
    inputs = layer_inputs(*size)
    x, weight, fan_in, fan_out, noise = inputs
    want = x @ weight.T + (x.square() @ (fan_in.exp() @ fan_out.exp().T).square()).sqrt() * noise
    slopes = gradients(want, inputs[:4])
    for function in (ktied_linear, ktied_linear_reference):
        got = function(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        assert_all_close(gradients(got, inputs[:4]), slopes)


@pytest.mark.parametrize("random_bias", [False, True])
def test_the_layer_adds_its_bias(random_bias: bool) -> None:
    inputs = *layer_inputs(11, 13, 6, 2), random(6), *((random(6), random(6).detach()) if random_bias else ())
    free = tuple(tensor for tensor in inputs if tensor.requires_grad)
    bias = inputs[5] + inputs[6].exp() * inputs[7] if random_bias else inputs[5]
    want = ktied_linear(*inputs[:5]) + bias
    slopes = gradients(want, free)
    for function in (ktied_linear, ktied_linear_reference):
        got = function(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        assert_all_close(gradients(got, free), slopes)
    if random_bias:
        few = [tensor.detach()[:3].requires_grad_() for tensor in (inputs[0], *inputs[5:7])]
        rest = (tensor.detach() for tensor in inputs[1:4])
        weight, fan_in, fan_out = (each[:3] if each.shape[0] == 6 else each for each in rest)
        noises = inputs[4][:3, :3], inputs[7][:3]
        assert torch.autograd.gradgradcheck(
            lambda x, b, s: ktied_linear(x, weight, fan_in, fan_out, noises[0], b, s, noises[1]), few
        )


def test_numerical_derivatives_of_first_and_second_order() -> None:
    *free, noise = layer_inputs(3, 4, 5, 2)
    assert torch.autograd.gradcheck(lambda *inputs: ktied_linear(*inputs, noise), free)
    assert torch.autograd.gradgradcheck(lambda *inputs: ktied_linear(*inputs, noise), free)
    logs = random(4, 2), random(3, 2)
    assert torch.autograd.gradcheck(lambda u, v: ktied_divergence(u, v, 0.7), logs)
    assert torch.autograd.gradgradcheck(lambda u, v: ktied_divergence(u, v, 0.7), logs)
    vectors = random(5), random(5)
    assert torch.autograd.gradcheck(lambda m, s: diagonal_divergence(m, s, 0.3, 0.7), vectors)
    assert torch.autograd.gradgradcheck(lambda m, s: diagonal_divergence(m, s, 0.3, 0.7), vectors)


@pytest.mark.parametrize("value", [0.0, 1e-200])
def test_inputs_without_variance_have_the_gradients_of_the_reference(value: float) -> None:
    """The square of 1e-200 is zero, though the input is not."""
    x, *rest = layer_inputs(4, 3, 5, 2)
    x = x.detach()
    x[1] = value
    inputs = x.requires_grad_(), *rest
    got, want = (gradients(function(*inputs), inputs[:4]) for function in (ktied_linear, ktied_linear_reference))
    assert_all_close(got, want)
    assert all(torch.isfinite(gradient).all() for gradient in got)


@pytest.mark.parametrize("frozen", range(4))
def test_an_input_that_needs_no_gradient_gets_none(frozen: int) -> None:
    inputs = list(layer_inputs(4, 3, 5, 2))
    inputs[frozen] = inputs[frozen].detach()
    ktied_linear(*inputs).sum().backward()
    assert inputs[frozen].grad is None
    want = torch.autograd.grad(ktied_linear_reference(*inputs).sum(), [t for t in inputs if t.requires_grad])
    assert_all_close([t.grad for t in inputs if t.requires_grad], list(want))


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    return nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 4)).to(dtype)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
@pytest.mark.parametrize("centre", [0.0, 0.3])
def test_a_step_of_a_network_is_that_of_the_general_path(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], centre: float
) -> None:
    x = random(*shape, 9).detach()
    bnn = br.bayesianize(network(), br.KTied(2), br.Normal(0.5, centre), LocalReparam())
    loss, got = step(bnn, x)
    monkeypatch.setattr(KTiedCovariance, "fused_output", lambda *_: None)
    monkeypatch.setattr(br.Normal, "numbers", lambda _: None)
    general, want = step(bnn, x)
    torch.testing.assert_close(loss, general, rtol=1e-12, atol=1e-12)
    assert_all_close(got, want)


def test_kls_equal_the_general_ones() -> None:
    posterior = GaussianPosterior(random(5, 4), KTiedCovariance(positive(5, 2), positive(4, 2)))
    bias = br.Diagonal().build({"mean": random(4), "log_std": random(4)}, event_dim=1)
    for value in (posterior, bias):
        for centre in (0.0, -0.4):
            got, want = (kl_divergence(value, prior(0.7, centre)) for prior in (br.Normal, Subtle))
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_nothing_but_one_gradient_is_as_large_as_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(400, 400, bias=False)
    bnn = br.bayesianize(linear, br.KTied(2), br.Normal(0.5), LocalReparam())
    made: list[int] = []

    class Sizes(LargestTensor):
        def __torch_dispatch__(self, *call: Any) -> Any:
            self.entries = 0
            result = super().__torch_dispatch__(*call)
            made.append(self.entries)
            return result

    # By its full name, for the function hides the module of the same name.
    monkeypatch.setattr(importlib.import_module("bayesrule.kernels.sum_log_product"), "CHUNK_ENTRIES", 1 << 12)
    with Sizes():
        (bnn(torch.randn(4, 400)).square().mean() + br.kl(bnn)).backward()
    assert sum(entries >= 400 * 400 for entries in made) == 1


def output(x: Tensor, posterior: GaussianPosterior) -> Tensor:
    return LocalReparam()(posterior, Linear(MatrixView((4, 5))), x, Replay([torch.ones(len(x), 4)]))


def test_transformations_take_the_general_path() -> None:
    posterior = GaussianPosterior(random(5, 4), KTiedCovariance(positive(5, 2), positive(4, 2)))
    x = random(3, 5).detach()
    want = output(x, posterior)
    mapped = torch.func.vmap(lambda row: output(row[None], posterior)[0])(x)
    torch.testing.assert_close(mapped, want, rtol=1e-12, atol=1e-12)
    tangent = torch.randn_like(x)
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch compiles its own derivatives by jit
        slope = forward_ad.unpack_dual(output(forward_ad.make_dual(x, tangent), posterior)).tangent
    _, expected = torch.func.jvp(lambda rows: output(rows, posterior), (x,), (tangent,))
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        rough = output(x.float(), GaussianPosterior(posterior.mean.float(), KTiedCovariance(
            posterior.covariance.fan_in_factor.float(), posterior.covariance.fan_out_factor.float())))  # fmt: skip
    torch.testing.assert_close(rough.double(), want, rtol=0.05, atol=0.1)
