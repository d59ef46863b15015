"""Members trained as one batched network are what they are one by one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import Family
from bayesrule.priors import Prior
from bayesrule.random import FromGenerator, Law
from bayesrule.train.stacked import StackedMembers

INPUTS, OUTPUTS, MEMBERS, ROWS = 4, 3, 3, 5

FAMILIES: list[Family] = [
    br.Diagonal(0.1), br.KTied(2, 0.1), br.MatrixNormal(0.1), br.MatrixNormalDiagonal("kronecker", 0.1), br.Full(0.1),
]  # fmt: skip
PRIORS: list[Prior] = [
    br.Normal(0.3),
    br.Normal(0.3, mean="pretrained"),
    br.HeNormal(),
    br.LearnedNormal(),
    br.LearnedNormal("model"),
    br.ARD(),
    *(br.GroupARD(group, learn) for group in ("row", "column", "both") for learn in ("closed-form", "gradient")),
]


def moved(bnn: BayesianModule, generator: torch.Generator) -> BayesianModule:
    """All trainable numbers off their initial values, so that nothing is alike between members or zero."""
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return bnn


def make(family: Family, prior: Prior, hidden: tuple[int, ...] = (6,)) -> list[BayesianModule]:
    generator = torch.Generator().manual_seed(1)
    sizes = (INPUTS, *hidden, OUTPUTS)
    members = []
    for _ in range(MEMBERS):
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.SiLU()]
        plain = nn.Sequential(*layers[:-1]).double()
        members.append(moved(br.bayesianize(plain, family, prior, generator=generator), generator))
    return members


def some_inputs() -> Tensor:
    return torch.randn(MEMBERS, ROWS, INPUTS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("prior", PRIORS, ids=repr)
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_kl_is_each_members_own(family: Family, prior: Prior) -> None:
    members = make(family, prior)
    expected = torch.stack([br.kl(member) for member in members])
    torch.testing.assert_close(StackedMembers(members).kl(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_without_noise_outputs_are_those_at_the_mean(family: Family) -> None:
    members, x = make(family, br.Normal(1.0)), some_inputs()
    expected = torch.stack([member.at_mean(rows) for member, rows in zip(members, x, strict=True)])
    torch.testing.assert_close(StackedMembers(members).outputs(x, None), expected, rtol=1e-12, atol=1e-12)


class Leaves:
    """Noise that is zero and remembered, to differentiate by."""

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        assert law == "normal"
        self.leaves.append(torch.zeros(shape, dtype=like.dtype, requires_grad=True))
        return self.leaves[-1]


def local_covariance(stacked: StackedMembers, x: Tensor) -> Tensor:
    """Covariance of the outputs of each row of one layer, exactly: they are linear in standard normal noise."""
    noise = Leaves()
    outputs = stacked.outputs(x, noise)
    covariance = torch.zeros(MEMBERS, ROWS, OUTPUTS, OUTPUTS, dtype=torch.float64)
    for member in range(MEMBERS):
        for row in range(ROWS):
            entries = [torch.autograd.grad(output, noise.leaves, retain_graph=True) for output in outputs[member, row]]
            jacobian = torch.stack([torch.cat([part.flatten() for part in entry]) for entry in entries])
            covariance[member, row] = jacobian @ jacobian.mT
    return covariance


def dense_covariance(member: BayesianModule, x: Tensor) -> Tensor:
    """``Cov(xᵀW + b)`` of each row by the dense covariance of the row-major weight."""
    weight, bias = member.posteriors()["0.weight"], member.posteriors()["0.bias"]
    dense = weight.covariance.dense().reshape(INPUTS, OUTPUTS, INPUTS, OUTPUTS)
    return torch.einsum("bi,iojp,bj->bop", x, dense, x) + torch.diag(bias.variance)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_the_noise_of_a_layer_has_the_posteriors_covariance(family: Family) -> None:
    members, x = make(family, br.Normal(1.0), hidden=()), some_inputs()
    expected = torch.stack([dense_covariance(member, rows) for member, rows in zip(members, x, strict=True)])
    found = local_covariance(StackedMembers(members), x)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_gradients_are_each_members_own(family: Family) -> None:
    members, x = make(family, br.GroupARD("row")), some_inputs()
    stacked = StackedMembers(members)
    weights = torch.randn(MEMBERS, ROWS, OUTPUTS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ((stacked.outputs(x, None) * weights).sum() + stacked.kl().sum()).backward()
    for number, member in enumerate(members):
        ((member.at_mean(x[number]) * weights[number]).sum() + br.kl(member)).backward()
        for name, parameter in member.named_parameters():
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            together = stacked.parameters[name].grad
            assert together is not None
            torch.testing.assert_close(together[number], own, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_one_members_noisy_loss_leaves_the_others_alone(family: Family) -> None:
    stacked = StackedMembers(make(family, br.GroupARD("row")))
    noise = FromGenerator(torch.Generator().manual_seed(4))
    (stacked.outputs(some_inputs(), noise)[1].square().sum() + stacked.kl()[1]).backward()
    for name, parameter in stacked.parameters.items():
        assert parameter.grad is not None, name
        others = torch.cat([parameter.grad[:1], parameter.grad[2:]])
        assert not others.any(), name
        assert parameter.grad[1].any(), name


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_members_have_noise_of_their_own(family: Family) -> None:
    member = make(family, br.Normal(1.0))[0]
    stacked = StackedMembers([member, member])
    x = some_inputs()[:1].expand(2, -1, -1)
    first, second = stacked.outputs(x, FromGenerator(torch.Generator().manual_seed(5)))
    assert (first - second).abs().amin() > 0


def test_numbers_written_back_are_each_members_slice() -> None:
    members = make(br.KTied(2, 0.1), br.GroupARD("row", "gradient"))
    stacked = StackedMembers(members)
    shifted = {name: value.detach() + torch.arange(MEMBERS).reshape(-1, *(1,) * (value.ndim - 1))
               for name, value in stacked.parameters.items()}  # fmt: skip
    stacked.write_back(shifted)
    for number, member in enumerate(members):
        for name, parameter in member.named_parameters():
            assert torch.equal(parameter, shifted[name][number])


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (
            lambda s, x: s.parameters["module.2.homes.weight.posterior.mean"].data.view(-1)[3:4].fill_(torch.nan),
            "2.hom",
        ),
        (lambda s, x: x.view(-1)[1:2].fill_(torch.inf), "inputs"),
        (lambda s, x: s.parameters["module.0.homes.weight.posterior.mean"].data.fill_(1e308), "layer 0"),
        (lambda s, x: None, "loss"),
    ],
    ids=["parameter", "input", "layer", "nothing"],
)
def test_what_is_not_finite_is_named(spoil: Callable[[StackedMembers, Tensor], None], named: str) -> None:
    stacked, x = StackedMembers(make(br.Diagonal(0.1), br.Normal(1.0))), some_inputs()
    spoil(stacked, x)
    assert named in stacked.first_broken(x)
