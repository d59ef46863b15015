"""Weights drawn together while a model is changed: frozen, given other parameters, or kept otherwise in memory."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.kernels.native import is_there
from bayesrule.nn.home import kls_of_homes
from drawn_models import X, model, nll_of, nodes
from kernel_checks import assert_relative

pytestmark = pytest.mark.skipif(not is_there(), reason="needs a C compiler")
Change = Callable[[br.nn.BayesianModule], None]


def freeze_for_a_pass(bnn: br.nn.BayesianModule) -> None:
    bnn.module.wide.requires_grad_(False)
    bnn(X)
    bnn.requires_grad_(True)


def pass_with_others(bnn: br.nn.BayesianModule) -> None:
    others = {name: each.detach().clone().requires_grad_() for name, each in bnn.named_parameters() if "log" in name}
    functional_call(bnn, others, (X,))


def replace_after_a_pass(bnn: br.nn.BayesianModule) -> None:
    bnn(X)
    posterior = bnn.module.wide.homes["bias"].posterior
    posterior.log_std = nn.Parameter(posterior.log_std.detach().clone())


@pytest.mark.parametrize("change", [freeze_for_a_pass, pass_with_others, replace_after_a_pass],
                         ids=lambda change: change.__name__)  # fmt: skip
def test_a_kl_reaches_the_parameters_that_are_there_now(change: Change) -> None:
    bnn = model()
    change(bnn)
    wide = copy.deepcopy(bnn).double()
    total = torch.stack(list(kls_of_homes(wide.homes().values()).values())).sum()
    want = torch.autograd.grad(total, list(wide.parameters()))
    br.kl(bnn).backward()
    for mine, theirs in zip(bnn.parameters(), want, strict=True):
        assert mine.grad is not None
        assert_relative(mine.grad, theirs, 3e-6)


def test_some_parameters_frozen() -> None:
    bnn = model()
    for home in bnn.homes().values():
        home.mean.requires_grad_(False)
    (nll_of(bnn) + br.kl(bnn)).backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in bnn.parameters())
    bnn.requires_grad_(False)
    assert not (bnn(X).sum() + br.kl(bnn)).requires_grad


def test_draws_of_frozen_layers_want_no_gradient() -> None:
    """Else all of a frozen beginning would be kept for a gradient, and gone through backwards."""
    bnn = model()
    bnn.module.conv.requires_grad_(False)
    seen: list[bool] = []
    bnn.module.conv.register_forward_hook(lambda layer, *_: seen.append(layer.weight.requires_grad))
    bnn.module.wide.register_forward_hook(lambda layer, *_: seen.append(layer.weight.requires_grad))
    (nll_of(bnn) + br.kl(bnn)).backward()
    assert seen == [False, True]
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in bnn.parameters())


@pytest.mark.parametrize("batched", [False, True])
def test_further_derivatives_beside_frozen_layers(batched: bool) -> None:
    bnn = model()
    bnn.module.wide.requires_grad_(False)
    free = [parameter for parameter in bnn.parameters() if parameter.requires_grad]
    torch.manual_seed(5)
    total = nll_of(bnn)
    once = torch.autograd.grad(total, free, retain_graph=True)
    if batched:
        (again,) = zip(*torch.autograd.grad(total, free, torch.ones(1), is_grads_batched=True), strict=True)
    else:
        again = torch.autograd.grad(total, free, create_graph=True)
        assert all(slope.requires_grad for slope in again)
    for mine, theirs in zip(again, once, strict=True):
        assert_relative(mine, theirs.double(), 1e-5)


def test_computed_parameters_are_let_go() -> None:
    bnn, far = model(), torch.randn((), requires_grad=True)
    gone = weakref.ref(far)
    computed = {name: parameter.detach() + 0 * far.sin() for name, parameter in bnn.named_parameters()}
    functional_call(bnn, computed, (X,))
    functional_call(bnn, computed, (X,)).sum().backward()
    assert far.grad is not None
    del computed, far
    gc.collect()
    assert gone() is None


def test_gradients_can_be_written_over_one_by_one() -> None:
    """One that was saved for a further derivative is not spoilt by a change of another."""
    bnn = model()
    (nll_of(bnn) + br.kl(bnn)).backward()
    first, second, *_ = bnn.parameters()
    weight = torch.ones_like(first, requires_grad=True)
    total = (weight * first.grad).sum()
    second.grad.zero_()
    total.backward()
    assert torch.equal(weight.grad, first.grad)


def test_another_default_device_changes_nothing() -> None:
    bnn = model()
    with torch.device("meta"):
        assert (bnn(X).sum() + br.kl(bnn)).device.type == "cpu"


def test_the_first_pass_may_be_checkpointed() -> None:
    """In which estimators choose, and in whose recomputation they know."""
    layers = nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 5)
    bnn = br.bayesianize(nn.Sequential(*layers), br.MatrixNormal(), estimator=br.Auto())
    checkpoint(bnn, torch.randn(6, 7), use_reentrant=False).sum().backward()
    assert all(parameter.grad is not None for parameter in bnn.parameters())


def test_parameters_in_another_order() -> None:
    bnn = model()
    posterior = bnn.module.wide.homes["weight"].posterior
    want = br.kl(bnn)
    mean = posterior.mean
    del posterior.mean
    posterior.register_parameter("mean", mean)
    assert torch.equal(br.kl(bnn), want)
    with torch.no_grad():
        for name, parameter in posterior.named_parameters():
            parameter.fill_(-60.0 if "factor" in name else 0.25)
    seen: list[Tensor] = []
    bnn.module.wide.register_forward_hook(lambda layer, *_: seen.append(layer.weight))
    bnn(X)
    assert torch.equal(seen[0], mean)


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_a_parametrized_parameter() -> None:
    bnn = model()
    parametrize.register_parametrization(bnn.module.wide.homes["weight"].posterior, "mean", Half())
    wide = copy.deepcopy(bnn).double()
    total = torch.stack(list(kls_of_homes(wide.homes().values()).values())).sum()
    for _ in range(2):
        torch.testing.assert_close((0 * bnn(X).sum() + br.kl(bnn)).double(), total, rtol=1e-6, atol=0)
        with torch.no_grad():
            for each in (bnn, wide):
                each.module.wide.homes["weight"].posterior.parametrizations.mean.original.mul_(2)
        total = torch.stack(list(kls_of_homes(wide.homes().values()).values())).sum()


def test_what_does_not_lie_in_order_takes_only_itself_off() -> None:
    bnn = model()

    def ours() -> set[str]:
        return {name for name in nodes(bnn(X.to(bnn.module.wide.homes["weight"].mean.dtype))) if name.startswith("_")}

    assert ours() == {"_DrawsBackward"}
    bnn.to(memory_format=torch.channels_last)
    assert ours() == {"_DrawsBackward"}  # but for the convolution, which takes plain operations
    bnn.double()
    assert "_DrawsBackward" not in ours()
    bnn.float()
    assert ours() == {"_DrawsBackward"}


def test_a_first_pass_that_is_watched() -> None:
    """Of which our own code knows nothing: what it was told then would be too little memory later."""
    bnn = model()
    with FlopCounterMode(display=False):
        bnn(X)
    (nll_of(bnn) + br.kl(bnn) / 50).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in bnn.parameters())


@pytest.mark.parametrize("name", ["mean", "fan_in_log_factor", "fan_out_log_factor"])
def test_a_parameter_that_is_parametrized_after_a_pass(name: str) -> None:
    bnn = model()
    nll_of(bnn), br.kl(bnn)
    parametrize.register_parametrization(bnn.homes()["head.weight"].posterior, name, Half())
    nll_of(bnn)
    torch.testing.assert_close(br.kl(bnn), torch.stack(list(bnn.kls().values())).sum(), rtol=1e-5, atol=0)


def transposed(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT


@pytest.mark.parametrize("change", [transposed, Tensor.double, lambda tensor: tensor[:-1].clone()])
def test_gradients_are_refused_where_they_would_not_fit(change: Callable[[Tensor], Tensor]) -> None:
    bnn = model()
    total = nll_of(bnn)
    logs = bnn.homes()["wide.weight"].posterior.fan_in_log_factor
    logs.data = change(logs.data)
    with pytest.raises(InvalidArgument, match="changed in place"):
        total.backward()
