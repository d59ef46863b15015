"""The fused k-tied layer and KLs on a CPU: against the general path, formulas, and numerical derivatives."""

from __future__ import annotations

import copy
import importlib
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import bayesrule as br
from bayesrule.contractions import Linear
from bayesrule.estimators import LocalReparam
from bayesrule.kernels import ParameterTap, diagonal_divergence, ktied_divergence
from bayesrule.kernels.ktied_linear import ktied_linear, ktied_linear_reference
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import GaussianPosterior
from bayesrule.posteriors.ktied import KTiedCovariance
from bayesrule.posteriors.variational import Variational
from bayesrule.priors import kl_divergence
from bayesrule.random import Replay
from largest_tensor import LargestTensor

SIZES = [(1, 1, 1, 1), (5, 7, 3, 1), (4, 3, 9, 2), (11, 13, 6, 3), (3, 8, 8, 5)]
"""Rows, fan-in, fan-out and rank; five columns have more pairs than are multiplied one by one."""


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64).add(0.1).requires_grad_()


def layer_inputs(rows: int, fan_in: int, fan_out: int, rank: int) -> tuple[Tensor, ...]:
    noise = random(rows, fan_out).detach()
    return random(rows, fan_in), random(fan_out, fan_in), random(fan_in, rank), random(fan_out, rank), noise


def gradients(output: Tensor, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(output.shape, dtype=output.dtype, generator=generator)
    return list(torch.autograd.grad(output, inputs, cotangent))


def assert_all_close(got: list[Tensor], want: list[Tensor], tolerance: float = 1e-12) -> None:
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


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


class Subtle(br.Normal):
    """The same prior, of which no numbers are known: it takes the general path."""

    def numbers(self) -> None:
        return None


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    return nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 4)).to(dtype)


def step(bnn: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(5)
    loss = bnn(x).square().mean() + br.kl(bnn) / 7
    return loss, list(torch.autograd.grad(loss, list(bnn.parameters())))


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


def tied_model() -> tuple[nn.Module, Tensor]:
    bnn = br.bayesianize(nn.Linear(9, 12, bias=False).double(), br.KTied(2), br.Normal(0.5), LocalReparam())
    return bnn, random(6, 9).detach()


@pytest.mark.parametrize("order", ["apart", "kl first", "kl twice", "two passes", "retained"])
def test_the_two_gradients_of_a_mean_meet_however_they_are_taken(order: str) -> None:
    bnn, x = tied_model()
    mean = dict(bnn.named_parameters())["module.homes.weight.posterior.mean"]

    def forward() -> Tensor:
        torch.manual_seed(5)
        return bnn(x).square().mean()

    (of_loss,), (of_kl,) = (torch.autograd.grad(value, mean) for value in (forward(), br.kl(bnn)))
    if order == "apart":
        loss, kl = forward(), br.kl(bnn)
        loss.backward()
        kl.backward()
        want = of_loss + of_kl
    elif order == "kl first":
        kl = br.kl(bnn)
        (forward() + kl).backward()
        want = of_loss + of_kl
    elif order == "kl twice":
        (forward() + br.kl(bnn) + br.kl(bnn)).backward()
        want = of_loss + 2 * of_kl
    elif order == "two passes":
        (forward() + forward() + br.kl(bnn)).backward()
        want = 2 * of_loss + of_kl
    else:
        loss = forward() + br.kl(bnn)
        loss.backward(retain_graph=True)
        loss.backward()
        want = 2 * (of_loss + of_kl)
    assert_all_close([mean.grad], [want])


def test_the_kls_of_layers_in_two_precisions() -> None:
    """One node for each, whose sum is in the higher one."""
    nets = [nn.Sequential(nn.Linear(9, 12).float(), nn.Linear(12, 4).double()) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    models = []
    for net, prior in zip(nets, (br.Normal(0.5), Subtle(0.5)), strict=True):
        torch.manual_seed(1)
        models.append(br.bayesianize(net, br.KTied(2), prior, br.LocalReparam()))
    kls = [br.kl(model) for model in models]
    assert kls[0].dtype == kls[1].dtype == torch.float64
    torch.testing.assert_close(kls[0], kls[1], rtol=1e-6, atol=0)
    found = (torch.autograd.grad(kl, list(model.parameters())) for kl, model in zip(kls, models, strict=True))
    for mine, general in zip(*found, strict=True):
        assert mine.dtype == general.dtype
        torch.testing.assert_close(mine, general, rtol=1e-5, atol=1e-6)


def test_gradients_of_gradients_pass_through_the_tap() -> None:
    bnn, x = tied_model()
    parameters = list(bnn.parameters())
    torch.manual_seed(5)
    loss = bnn(x).square().mean() + br.kl(bnn) / 7
    first = torch.autograd.grad(loss, parameters, create_graph=True)
    got = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), parameters)
    posterior = bnn.posteriors()["weight"]
    torch.manual_seed(5)
    noise = torch.randn(6, 12, dtype=torch.float64)
    u, v = posterior.covariance.fan_in_factor, posterior.covariance.fan_out_factor
    std = u @ v.T
    plain = (x @ posterior.mean + (x.square() @ std.square()).sqrt() * noise).square().mean()
    kl = 0.5 * (4 * (std.square() + posterior.mean.square()) - 1 - (4 * std.square()).log()).sum()
    first = torch.autograd.grad(plain + kl / 7, parameters, create_graph=True)
    want = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), parameters)
    assert_all_close(list(got), list(want), 1e-10)


@pytest.mark.parametrize("prior", [br.Normal(0.5), br.ARD()], ids=["fused KL", "general KL"])
@pytest.mark.parametrize("family", [br.KTied(2), br.Diagonal()], ids=["KTied", "Diagonal"])
def test_no_graph_outlives_its_backward_pass(family: br.Family, prior: br.Prior) -> None:
    """Nodes made in one stream of a GPU and found again in another could not be recorded there."""
    bnn = br.bayesianize(nn.Linear(5, 4), family, prior, br.LocalReparam())
    (bnn(torch.randn(3, 5)).square().mean() + br.kl(bnn)).backward()
    taps = [module.tap for module in bnn.modules() if isinstance(module, Variational)]
    assert len(taps) == 2
    assert all(tap._kept is None for tap in taps)


def test_a_mean_changed_before_backward_is_refused() -> None:
    bnn, x = tied_model()
    kl = br.kl(bnn)
    with torch.no_grad():
        bnn.module.homes["weight"].mean.add_(1)
    with pytest.raises(br.errors.InvalidArgument, match="changed in place"):
        kl.backward()
    (bnn(x).sum() + br.kl(bnn)).backward()


def test_tensors_in_a_parameters_place_take_their_own_gradients() -> None:
    """As of `functional_call`: they share its memory, but not its gradient."""
    bnn, x = tied_model()
    named = dict(bnn.named_parameters())
    stand_ins = {name: parameter.detach().requires_grad_() for name, parameter in named.items()}
    torch.func.functional_call(bnn, stand_ins, (x,))
    br.kl(bnn).backward()
    assert all(stand_in.grad is None for stand_in in stand_ins.values())
    assert all(parameter.grad is not None for parameter in named.values())


def test_copies_and_pickles_of_a_model_that_has_run() -> None:
    bnn, x = tied_model()
    bnn(x)
    for other in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):
        assert_all_close(step(other, x)[1], step(bnn, x)[1])
    assert ParameterTap.__reduce__(ParameterTap()) == (ParameterTap, ())


def test_nothing_but_one_gradient_is_as_large_as_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(300, 200, bias=False)
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
        (bnn(torch.randn(4, 300)).square().mean() + br.kl(bnn)).backward()
    assert sum(entries >= 300 * 200 for entries in made) == 1


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
