"""One gradient for the parameters that a layer and a KL share, however either is differentiated."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bayesrule as br
from bayesrule.kernels import ParameterTap
from bayesrule.posteriors.variational import Variational
from ktied_problems import Subtle, assert_all_close, random, step, tied_model


def one_layer(dtype: torch.dtype, estimator: br.Estimator) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, whose nodes are the compiled library's in single precision, its input, and its mean."""
    bnn = br.bayesianize(nn.Linear(9, 12).to(dtype), br.KTied(2, 0.3), br.Normal(0.5), estimator)
    return bnn, random(6, 9).detach().to(dtype), dict(bnn.named_parameters())["module.homes.weight.posterior.mean"]


ways = pytest.mark.parametrize("estimator", [br.LocalReparam(), br.WeightSample()], ids=["local", "drawn"])
precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}
ORDERS = ["together", "apart", "kl apart first", "kl first", "kl twice", "kl alone", "two passes", "retained"]


@ways
@precisions
@pytest.mark.parametrize("order", ORDERS)
def test_the_two_gradients_of_a_mean_meet_however_they_are_taken(
    order: str, dtype: torch.dtype, estimator: br.Estimator
) -> None:
    bnn, x, mean = one_layer(dtype, estimator)

    def forward() -> Tensor:
        torch.manual_seed(5)
        return bnn(x).square().mean()

    (of_loss,), (of_kl,) = (torch.autograd.grad(value, mean) for value in (forward(), br.kl(bnn)))
    want = of_loss + of_kl
    if order == "together":
        (forward() + br.kl(bnn)).backward()
    elif order == "apart":
        loss, kl = forward(), br.kl(bnn)
        loss.backward()
        kl.backward()
    elif order == "kl apart first":
        loss, kl = forward(), br.kl(bnn)
        kl.backward()
        loss.backward()
    elif order == "kl alone":
        loss = forward()
        (br.kl(bnn) + 0 * loss.detach()).backward()
        want = of_kl
    elif order == "kl first":
        kl = br.kl(bnn)
        (forward() + kl).backward()
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
    scale = want.abs().max().item()
    torch.testing.assert_close(mean.grad / scale, want / scale, rtol=0, atol=TOLERANCE[dtype])


@ways
@precisions
def test_only_the_gradients_that_are_asked_for(dtype: torch.dtype, estimator: br.Estimator) -> None:
    """What a KL leaves to a layer in one backward pass is not found in another."""
    bnn, x, mean = one_layer(dtype, estimator)
    x.requires_grad_()
    torch.manual_seed(5)
    (plain,) = torch.autograd.grad(bnn(x).square().mean(), x)
    torch.manual_seed(5)
    loss = bnn(x).square().mean() + br.kl(bnn) / 7
    wanted = list(torch.autograd.grad(loss, [x, mean], retain_graph=True))
    for index, tensor in enumerate((x, mean)):
        (alone,) = torch.autograd.grad(loss, tensor, retain_graph=True)
        torch.testing.assert_close(alone, wanted[index], rtol=0, atol=0)
    torch.testing.assert_close(wanted[0], plain, rtol=0, atol=0)
    (differentiable,) = torch.autograd.grad(loss, mean, create_graph=True)
    torch.testing.assert_close(differentiable, wanted[1], rtol=1e-5, atol=1e-6)
    (again,) = torch.autograd.grad(loss, mean)
    torch.testing.assert_close(again, wanted[1], rtol=0, atol=0)


@ways
def test_a_failed_backward_pass_leaves_nothing_behind(estimator: br.Estimator) -> None:
    bnn, x, mean = one_layer(torch.float32, estimator)

    def step(fail: bool) -> Tensor:
        torch.manual_seed(5)
        output = bnn(x)
        if fail:
            output.register_hook(lambda gradient: 1 / 0)
        mean.grad = None
        (output.square().mean() + br.kl(bnn)).backward()
        assert mean.grad is not None
        return mean.grad.clone()

    want = step(fail=False)
    with pytest.raises(ZeroDivisionError):
        step(fail=True)
    assert torch.equal(step(fail=False), want)


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


@ways
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_layer_takes_what_the_kl_left(reentrant: bool, estimator: br.Estimator) -> None:
    """Its node's tensors are computed again while it runs, by a forward pass that makes another node."""
    bnn, x, _ = one_layer(torch.float32, estimator)
    x.requires_grad_()
    found = []
    for run in (bnn, lambda rows: checkpoint(bnn, rows, use_reentrant=reentrant)):
        torch.manual_seed(5)
        bnn.zero_grad()
        (run(x).square().mean() + br.kl(bnn) / 7).backward()
        found.append([parameter.grad for parameter in bnn.parameters()])
    assert_all_close(*found, 1e-6)


@ways
@pytest.mark.parametrize("grad", [True, False])
def test_a_forward_pass_within_a_backward_pass_changes_nothing(grad: bool, estimator: br.Estimator) -> None:
    bnn, x, mean = one_layer(torch.float32, estimator)

    def gradient(between: bool) -> Tensor:
        torch.manual_seed(5)
        output = bnn(x)
        if between:

            def again(_: Tensor) -> None:
                with torch.set_grad_enabled(grad):
                    bnn(x)

            output.register_hook(again)
        (found,) = torch.autograd.grad(output.square().mean() + br.kl(bnn), mean)
        return found

    assert torch.equal(gradient(between=True), gradient(between=False))


@ways
def test_threads_that_train_one_model_get_their_own_gradients(estimator: br.Estimator) -> None:
    """Passes are made one after another, since a model has one table of draws; gradients are found at the same time."""
    bnn, x, mean = one_layer(torch.float32, estimator)
    (want,) = torch.autograd.grad(br.kl(bnn), mean)
    lock, wrong = threading.Lock(), []

    def work() -> None:
        for _ in range(60):
            with lock:
                loss = 0 * bnn(x).sum() + br.kl(bnn)
            (got,) = torch.autograd.grad(loss, mean)
            if not torch.allclose(got, want):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@ways
@precisions
def test_a_mean_changed_behind_autograds_back_has_its_own_kl(dtype: torch.dtype, estimator: br.Estimator) -> None:
    bnn, x, mean = one_layer(dtype, estimator)
    bnn(x)
    mean.data.mul_(10)
    value = br.kl(bnn)
    mean.data.copy_(mean.data.clone())
    fresh = copy.deepcopy(bnn)
    torch.testing.assert_close(value, br.kl(fresh))


def test_batches_of_gradients_of_a_drawn_layer() -> None:
    bnn, x, _ = one_layer(torch.float32, br.WeightSample())
    x.requires_grad_()
    torch.manual_seed(5)
    output = bnn(x)
    directions = torch.eye(12)[:, None].expand(12, *output.shape)
    (got,) = torch.autograd.grad(output, x, directions, is_grads_batched=True, retain_graph=True)
    want = [torch.autograd.grad(output, x, each, retain_graph=True)[0] for each in directions]
    assert_all_close(list(got), want, 1e-6)
