"""Small groups computed together: the same numbers as one by one, from fewer calls."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.optim import IVON, VOGN
from bayesrule.optim.diagonal_newton import DiagonalNewtonRule
from bayesrule.optim.group import KEPT, Events
from bayesrule.optim.ivon import IVONRule
from bayesrule.optim.joining import MOST, apart, joined, together
from bayesrule.optim.ogn import OGNRule
from bayesrule.optim.rule import Message, PriorTerm, Rule
from bayesrule.optim.vogn import VOGNRule

SHAPES = ((3, 2), (5, 4), (1, 6))
GAMMA = torch.tensor(0.3, dtype=torch.float64)


def columns(*shape: int) -> Tensor:
    """As layers' events lie in memory."""
    return torch.randn(shape[1], shape[0], dtype=torch.float64).mT


def test_events_come_apart_as_they_were_and_are_found_together_again() -> None:
    events = [columns(*shape) for shape in SHAPES]
    whole = joined(events)
    assert whole.shape == (3 * 2 + 5 * 4 + 6, 1)
    parts = apart(whole, SHAPES)
    for part, event in zip(parts, events, strict=True):
        torch.testing.assert_close(part, event, rtol=0, atol=0)
    again = joined(parts[1:])
    assert again.data_ptr() == parts[1].data_ptr()
    again.zero_()
    assert not whole[6:].any()
    assert whole[:6].any()


@pytest.mark.parametrize("spoiled", ["order", "gap", "rows", "other memory"])
def test_events_elsewhere_in_memory_are_copied(spoiled: str) -> None:
    events = apart(torch.randn(26, 1, dtype=torch.float64), [(3, 2), (5, 4)])
    given = {
        "order": events[::-1], "gap": [events[0], events[1][:, 1:]],
        "rows": [events[0], columns(4, 5).mT], "other memory": [events[0].clone(), events[1]],
    }[spoiled]  # fmt: skip
    whole = joined(given)
    assert whole.data_ptr() not in [each.data_ptr() for each in given]
    for part, event in zip(apart(whole, [each.shape for each in given]), given, strict=True):
        torch.testing.assert_close(part, event, rtol=0, atol=0)


def test_runs_are_of_one_kind_and_not_too_large() -> None:
    small, large = torch.empty(2, 2), torch.empty(MOST, 1)
    assert together([small] * 4, "aabb") == [slice(0, 2), slice(2, 4)]
    assert together([small, large, small, small], "aaaa") == [slice(0, 1), slice(1, 2), slice(2, 4)]
    assert together([large], "a") == [slice(0, 1)]


def tasks(counts: tuple[int, ...] = (1, 1, 1), curvature: bool = True) -> list[Any]:
    """Groups with one prior, and states as after some steps."""
    torch.manual_seed(5)
    prior, made = PriorTerm(GAMMA), []
    for shape, steps in zip(SHAPES, counts, strict=True):
        mean, name = columns(*shape), "relative"
        state = IVONRule().init(mean, [shape], GAMMA)
        state = replace(state, steps=steps, estimates=steps, momentum=columns(*shape), curvature=columns(*shape).exp())
        extra = {name: columns(*shape), "squares": columns(*shape).square()} if curvature else None
        made.append((mean, state, Message(columns(*shape), extra), prior))
    return made


@pytest.mark.parametrize("rule", [IVONRule(), VOGNRule(), OGNRule(extra_damping=0.2), IVONRule(max_kl=0.5),
                                  VOGNRule(max_kl=1e-3), IVONRule(max_kl=2.0, extra_damping=0.1)])  # fmt: skip
@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 1, 1), (1, 3, 1)])
@pytest.mark.parametrize("curvature", [True, False])
def test_together_is_the_same_as_one_by_one(rule: DiagonalNewtonRule, counts: tuple[int, ...], curvature: bool) -> None:
    together_ = rule.updates(tasks(counts, curvature), lr=0.7, refresh=True)
    alone = Rule.updates(rule, tasks(counts, curvature), lr=0.7, refresh=True)
    for (mean, state), (other_mean, other) in zip(together_, alone, strict=True):
        assert (state.steps, state.estimates, int(state.limited)) == (other.steps, other.estimates, int(other.limited))
        for left, right in ((mean, other_mean), (state.momentum, other.momentum), (state.curvature, other.curvature)):
            torch.testing.assert_close(left, right, rtol=1e-14, atol=1e-14)
    if rule.max_kl is None or rule.max_kl < 0.01:
        assert {int(state.limited) for _, state in together_} == {int(rule.max_kl is not None)}


def test_a_guard_that_holds_back_one_group_leaves_the_others() -> None:
    given = tasks()
    mean, state, message, prior = given[1]
    given[1] = mean, replace(state, momentum=1e3 * state.momentum), message, prior
    rule = IVONRule(max_kl=2.0)
    found = rule.updates(given, lr=0.1, refresh=True)
    assert [int(state.limited) for _, state in found] == [0, 1, 0]


@pytest.mark.parametrize("rule", [IVONRule(), OGNRule()])
def test_deviations_together_are_those_of_each(rule: DiagonalNewtonRule) -> None:
    given = tasks()
    noises = apart(torch.randn(32, 1, dtype=torch.float64), SHAPES)
    other = PriorTerm(GAMMA * 2)
    priors = [given[0][3], given[1][3], other]
    found = rule.deviations([state for _, state, _, _ in given], noises, priors)
    for each, (_, state, _, _), noise, prior in zip(found, given, noises, priors, strict=True):
        torch.testing.assert_close(each, rule.deviation(state, noise, prior.damping), rtol=1e-15, atol=0)


def test_updates_leave_means_and_states_as_they_were() -> None:
    given = tasks()
    before = [(mean.clone(), state.momentum.clone(), state.curvature.clone(), message.gradient.clone())
              for mean, state, message, _ in given]  # fmt: skip
    IVONRule(max_kl=1e-3).updates(given, lr=0.1, refresh=True)
    for (mean, state, message, _), old in zip(given, before, strict=True):
        for left, right in zip((mean, state.momentum, state.curvature, message.gradient), old, strict=True):
            assert torch.equal(left, right)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False), nn.Tanh(), nn.Linear(3, 2)).double()


def trained(kind: type[IVON | VOGN], steps: int = 6, **options: Any) -> tuple[nn.Sequential, Any]:
    net = network()
    opt = kind(net, n_data=50, lr=0.05, prior=br.Normal(1.0), likelihood=br.Gaussian(0.3), seed=3, **options)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(8, 4, dtype=torch.float64, generator=generator)
        for _ in range(1 + step % 2):
            with opt.sampled_params():
                opt.zero_grad()
                opt.nll(net(x), x[:, :2].sin()).backward()
        if step == 3:
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        if step == 4:
            for parameter in net.parameters():
                parameter.grad.data.mul_(0.5)  # of which autograd knows nothing
        opt.step()
    return net, opt


@pytest.mark.parametrize("kind", [IVON, VOGN])
@pytest.mark.parametrize("mirrored", [False, True])
def test_training_is_the_same_with_and_without_shared_memory(
    kind: type[IVON | VOGN], mirrored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where gradients are clipped between a block and its step, and where blocks are averaged."""
    net, opt = trained(kind, mirrored=mirrored)
    monkeypatch.setattr(DiagonalNewtonRule, "updates", Rule.updates)
    monkeypatch.setattr(DiagonalNewtonRule, "deviations", Rule.deviations)
    monkeypatch.setattr("bayesrule.optim.group.KEPT", 0)
    other, other_opt = trained(kind, mirrored=mirrored)
    for left, right in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)
    for name, state in opt.states.items():
        torch.testing.assert_close(state.curvature, other_opt.states[name].curvature, rtol=1e-12, atol=1e-12)


def test_events_are_written_to_the_same_memory() -> None:
    net = network()
    opt = IVON(net, n_data=50, prior=br.Normal(1.0))
    groups = tuple(opt.groups.values())
    tensors = {name: parameter.detach() for name, parameter in net.named_parameters()}
    events = Events(groups, tensors)
    places = [event.data_ptr() for event in events.of(groups, tensors)]
    other = {name: tensor + 1 for name, tensor in tensors.items()}
    again = events.of(groups, other)
    assert [event.data_ptr() for event in again] == places
    for event, group in zip(again, groups, strict=True):
        torch.testing.assert_close(event, group.event(other), rtol=0, atol=0)
    assert events.of(groups[:1], other)[0].data_ptr() not in places


@pytest.mark.parametrize("steps", [3, 4])
def test_a_loaded_state_is_not_written_over(steps: int) -> None:
    """A mirrored deviation is used up in place: in the optimizer's own copy."""
    _, opt = trained(IVON, steps, mirrored=True)
    saved = opt.state_dict()
    kept = copy.deepcopy(saved["posterior"]["mirror"])
    net, other = trained(IVON, 1, mirrored=True)
    for _ in range(2):
        other.load_state_dict(saved)
        for _ in range(2):
            with other.sampled_params():
                other.nll(net(torch.ones(2, 4, dtype=torch.float64)), torch.ones(2, 2, dtype=torch.float64)).backward()
            other.step()
        assert kept.keys() == saved["posterior"]["mirror"].keys()
        assert all(torch.equal(saved["posterior"]["mirror"][name], tensor) for name, tensor in kept.items())


def test_large_networks_keep_no_second_copy_of_their_weights() -> None:
    net = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 2))
    opt = IVON(net, n_data=10, prior=br.Normal(1.0))
    assert sum(group.size for group in opt.groups.values()) > KEPT
    assert opt._mean_events._events is None
    assert trained(IVON, 1)[1]._mean_events._events is not None


class Mixed(nn.Module):
    """Layers whose weights become matrices in different ways, one without a posterior and one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 2, padding=1), nn.BatchNorm2d(3)
        self.out, self.unused = nn.Linear(3, 2, bias=False), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.conv(x)).mean((2, 3)))


@pytest.mark.parametrize("own_source", [False, True])
@pytest.mark.parametrize("mirrored", [False, True])
def test_products_of_ivon_are_gradients_times_deviations(mirrored: bool, own_source: bool) -> None:
    torch.manual_seed(0)
    net = Mixed().double()
    opt = IVON(net, n_data=20, kl_weight=0.5, prior=br.Normal(1.0), seed=1, mirrored=mirrored)
    noise = (lambda shape, law, like: torch.randn(shape, dtype=like.dtype)) if own_source else None
    for _ in range(2):
        means = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        with opt.sampled_params(noise=noise):
            opt.zero_grad()
            net(torch.randn(5, 2, 3, 3, dtype=torch.float64)).square().mean().backward()
            drawn = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        found = {name: part for group, curvature in opt._pending.means().items()
                 for name, part in opt.groups[group].split(curvature["relative"]).items()}  # fmt: skip
        assert found.keys() == {"conv.weight", "conv.bias", "out.weight"}
        for name, part in found.items():
            expected = net.get_parameter(name).grad * (drawn[name] - means[name]) * 20 / 0.5
            torch.testing.assert_close(part, expected, rtol=1e-10, atol=1e-12)
        opt.step()
