"""The KLs of a model's small matrices and vectors, found together, against the general path in float64."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.kernels import JointDivergence
from bayesrule.kernels.native import is_there
from bayesrule.nn.home import Home, kls_of_homes

pytestmark = pytest.mark.skipif(not is_there(), reason="needs a C compiler")


def model(prior: br.Prior | None = None) -> nn.Module:
    """A convolution, small dense layers, a large one, and one without a bias."""
    torch.manual_seed(0)
    dense = nn.Linear(5 * 16, 300), nn.ReLU(), nn.Linear(300, 450), nn.Linear(450, 3, bias=False)
    net = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Flatten(), *dense)
    return br.bayesianize(net, br.KTied(2, 0.05), prior or br.Normal(0.5))


def exact(bnn: nn.Module) -> tuple[Tensor, list[Tensor]]:
    wide = copy.deepcopy(bnn).double()
    total = torch.stack(list(kls_of_homes(wide.homes().values()).values())).sum()
    return total, list(torch.autograd.grad(total, list(wide.parameters())))


def assert_exact(bnn: nn.Module, tolerance: float = 3e-6) -> None:
    total, want = exact(bnn)
    value = br.kl(bnn)
    torch.testing.assert_close(value.double(), total, rtol=1e-6, atol=0)
    for mine, theirs in zip(torch.autograd.grad(value, list(bnn.parameters())), want, strict=True):
        assert (mine.double() - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the library gave each sum that was asked for."""
    found: list[bool] = []
    own = JointDivergence.sum

    def told(joint: JointDivergence) -> Tensor | None:
        total = own(joint)
        found.append(total is not None)
        return total

    monkeypatch.setattr(JointDivergence, "sum", told)
    return found


def test_together_they_are_the_sum_of_all(asked: list[bool]) -> None:
    bnn = model()
    assert_exact(bnn)
    with torch.no_grad():
        br.kl(bnn)
    assert asked == [True, True]
    assert {home.name for home in found_apart(bnn)} == {"4.weight"}  # a large matrix
    bnn(torch.randn(4, 2, 6, 6))  # layers that find the sums of squares
    assert_exact(bnn)
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.mul_(1.1)
    assert_exact(bnn)


def found_apart(bnn: nn.Module) -> list[Home]:
    joint = bnn.together._kl
    assert joint is not None
    return joint.others


def homes_of(bnn: nn.Module) -> list[nn.Module]:
    return list(bnn.homes().values())


def another_prior(bnn: nn.Module) -> None:
    for home in homes_of(bnn):
        home.prior = br.Normal(2.0)


def one_prior_around_a_mean(bnn: nn.Module) -> None:
    homes_of(bnn)[1].prior = br.Normal(0.7, 0.3)
    homes_of(bnn)[0].prior = br.Normal(0.7, 0.3)


def another_parameter(bnn: nn.Module) -> None:
    posterior = homes_of(bnn)[0].posterior
    posterior.mean = nn.Parameter(torch.randn_like(posterior.mean))


def in_half_the_memory(bnn: nn.Module) -> None:
    for parameter in bnn.parameters():
        parameter.data = parameter.data.repeat_interleave(2, -1)[..., ::2]  # not in order


def of_another_shape(bnn: nn.Module) -> None:
    bias = homes_of(bnn)[-2].posterior
    bias.mean.data, bias.log_std.data = torch.randn(3), torch.randn(3)


CHANGES = [another_prior, one_prior_around_a_mean, another_parameter, in_half_the_memory, of_another_shape]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_was_changed_is_seen(change: Callable[[nn.Module], None]) -> None:
    bnn = model()
    br.kl(bnn)
    change(bnn)
    assert_exact(bnn)


def test_another_precision_takes_plain_operations(asked: list[bool]) -> None:
    bnn = model()
    br.kl(bnn)
    assert br.kl(bnn.double()).dtype == torch.float64
    assert_exact(bnn, 1e-12)
    assert not any(asked[1:])


def test_autocast_changes_nothing() -> None:
    bnn = model()
    with torch.autocast("cpu", torch.bfloat16):
        got = br.kl(bnn)
    torch.testing.assert_close(got, br.kl(bnn), rtol=1e-6, atol=0)


def test_standard_deviations_out_of_range_take_plain_operations(asked: list[bool]) -> None:
    bnn = model()
    with torch.no_grad():
        bnn.homes()["2.weight"].posterior.fan_in_log_factor.fill_(-90)
        bnn.homes()["2.weight"].posterior.fan_out_log_factor.fill_(-2)
    assert br.kl(bnn).isfinite()
    assert asked == [False]
    assert_exact(bnn, 1e-5)


def test_a_kl_too_large_for_single_precision_is_infinite() -> None:
    bnn = model()
    with torch.no_grad():
        for home in homes_of(bnn):
            home.mean.fill_(1e18)
    assert br.kl(bnn).isinf()


def test_frozen_parameters_get_no_gradient() -> None:
    bnn = model()
    for home in homes_of(bnn):
        home.mean.requires_grad_(False)
    br.kl(bnn).backward()
    assert all((parameter.grad is None) == (not parameter.requires_grad) for parameter in bnn.parameters())


def test_gradients_of_gradients() -> None:
    bnn = model()
    logs = homes_of(bnn)[0].posterior.fan_in_log_factor
    results = []
    for each in (bnn, copy.deepcopy(bnn).double()):
        logs = homes_of(each)[0].posterior.fan_in_log_factor
        (first,) = torch.autograd.grad(br.kl(each), logs, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), logs)[0].double())
    assert (results[0] - results[1]).abs().max() <= 1e-4 * results[1].abs().max()


def test_copies_have_their_own_and_models_are_let_go() -> None:
    bnn = model()
    br.kl(bnn)
    for other in (copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):
        with torch.no_grad():
            other.module[2].homes["weight"].mean.add_(1)
        assert_exact(other)
    assert_exact(bnn)
    bnn(torch.randn(4, 2, 6, 6))
    gone = weakref.ref(bnn)
    del bnn, other
    gc.collect()
    assert gone() is None


def test_the_functional_form_sees_its_own_parameters() -> None:
    bnn = model()
    br.kl(bnn)
    others = {name: (parameter * 1.5).detach() for name, parameter in bnn.named_parameters()}

    class Divergence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bnn = bnn

        def forward(self) -> Tensor:
            return br.kl(self.bnn)

    got = torch.func.functional_call(Divergence(), {f"bnn.{name}": value for name, value in others.items()}, ())
    changed = copy.deepcopy(bnn)
    changed.load_state_dict(others)
    torch.testing.assert_close(got, br.kl(changed), rtol=1e-6, atol=0)
