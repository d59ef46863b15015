"""One gradient for the parameters that a layer and a KL share, however either is differentiated."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.kernels import ParameterTap
from bayesrule.posteriors.variational import Variational
from ktied_problems import Subtle, assert_all_close, step, tied_model


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
