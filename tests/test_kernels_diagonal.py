"""The mean-field layer and its KL on a CPU: against formulas, the general path, and numerical derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.estimators import LocalReparam
from bayesrule.kernels.diagonal_linear import diagonal_linear, diagonal_linear_reference
from bayesrule.posteriors.diagonal import DiagonalCovariance
from bayesrule.priors import kl_divergence
from kernel_checks import assert_all_close, slopes


def layer_inputs(rows: int, fan_in: int, fan_out: int) -> tuple[Tensor, ...]:
    """Inputs, weight and logarithms that need gradients, and noise."""
    shapes = (rows, fan_in), (fan_out, fan_in), (fan_in, fan_out)
    free = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)
    return *free, torch.randn(rows, fan_out, dtype=torch.float64)


@pytest.mark.parametrize("size", [(1, 1, 1), (5, 7, 3), (4, 3, 9), (20, 13, 6)])
def test_the_layer_and_its_gradients_are_those_of_the_formula(size: tuple[int, int, int]) -> None:
    inputs = layer_inputs(*size)
    x, weight, log_std, noise = inputs
    spread = torch.einsum("bi,ij->bij", x, log_std.exp()).norm(dim=1)
    want = torch.einsum("bi,ji->bj", x, weight) + spread * noise
    gradients = slopes(want, inputs[:3])
    for function in (diagonal_linear, diagonal_linear_reference):
        got = function(*inputs)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        assert_all_close(slopes(got, inputs[:3]), gradients)


def test_numerical_derivatives_of_the_layer() -> None:
    *free, noise = layer_inputs(3, 4, 5)
    assert torch.autograd.gradcheck(lambda *inputs: diagonal_linear(*inputs, noise), free)
    assert torch.autograd.gradgradcheck(lambda *inputs: diagonal_linear(*inputs, noise), free)


@pytest.mark.parametrize("value", [0.0, 1e-200])
def test_inputs_without_variance_have_the_gradients_of_the_reference(value: float) -> None:
    """The square of 1e-200 is zero, though the input is not."""
    x, *rest = layer_inputs(4, 3, 5)
    x = x.detach()
    x[1] = value
    inputs = x.requires_grad_(), *rest
    got, want = (slopes(function(*inputs), inputs[:3]) for function in (diagonal_linear, diagonal_linear_reference))
    assert_all_close(got, want)
    assert all(torch.isfinite(gradient).all() for gradient in got)


@pytest.mark.parametrize("frozen", range(3))
def test_an_input_that_needs_no_gradient_gets_none(frozen: int) -> None:
    inputs = list(layer_inputs(4, 3, 5))
    inputs[frozen] = inputs[frozen].detach()
    diagonal_linear(*inputs).sum().backward()
    assert inputs[frozen].grad is None
    free = [tensor for tensor in inputs if tensor.requires_grad]
    want = torch.autograd.grad(diagonal_linear_reference(*inputs).sum(), free)
    assert_all_close([tensor.grad for tensor in free], list(want))


def general(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiagonalCovariance, "fused_output", lambda *_: None)
    monkeypatch.setattr(br.Normal, "numbers", lambda _: None)


@pytest.mark.parametrize("shape", [(6,), (2, 3)])
@pytest.mark.parametrize("centre", [0.0, 0.3])
def test_a_step_of_a_network_is_that_of_the_general_path(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], centre: float
) -> None:
    net = nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    bnn = br.bayesianize(net, br.Diagonal(0.3), br.Normal(0.5, centre), LocalReparam())
    x = torch.randn(*shape, 9, dtype=torch.float64)

    def step() -> tuple[Tensor, Tensor, list[Tensor]]:
        torch.manual_seed(5)
        output = bnn(x)
        loss = output.square().mean() + br.kl(bnn) / 7
        return output, loss, list(torch.autograd.grad(loss, list(bnn.parameters())))

    output, loss, got = step()
    general(monkeypatch)
    plain, plain_loss, want = step()
    torch.testing.assert_close(output, plain, rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(loss, plain_loss, rtol=1e-12, atol=1e-12)
    assert_all_close(got, want, 1e-12)


@pytest.mark.parametrize("module", [nn.Linear(4, 3), nn.Conv2d(2, 3, 2)], ids=repr)
def test_kls_of_matrices_and_their_gradients_are_the_general_ones(
    monkeypatch: pytest.MonkeyPatch, module: nn.Module
) -> None:
    bnn = br.bayesianize(module.double(), br.Diagonal(), br.Normal(0.7, -0.4))
    parameters = list(bnn.parameters())

    def both() -> tuple[Tensor, list[Tensor], list[Tensor]]:
        kl = br.kl(bnn)
        first = torch.autograd.grad(kl, parameters, create_graph=True)
        return kl, list(first), list(torch.autograd.grad(sum(each.square().sum() for each in first), parameters))

    kl, *got = both()
    general(monkeypatch)
    plain, *want = both()
    torch.testing.assert_close(kl, plain, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(got, want, strict=True):
        assert_all_close(mine, theirs, 1e-12)


def test_the_kl_is_that_of_torch() -> None:
    mean, log_std = (torch.randn(5, 7, dtype=torch.float64) for _ in range(2))
    posterior = br.Diagonal().build({"mean": mean, "log_std": log_std}, event_dim=2)
    law = torch.distributions.Normal(mean, log_std.exp())
    prior = torch.distributions.Normal(*torch.tensor([-0.4, 0.7], dtype=torch.float64))
    want = torch.distributions.kl_divergence(law, prior).sum()
    torch.testing.assert_close(kl_divergence(posterior, br.Normal(0.7, -0.4)), want, rtol=1e-12, atol=1e-12)
