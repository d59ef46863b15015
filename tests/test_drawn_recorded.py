"""Weights drawn together in steps that are recorded as CUDA graphs, and which estimator such steps choose."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.cuda_graphs import recorded_step
from bayesrule.train.captured import Captured
from drawn_models import at_given_draws, model, nll_of
from kernel_checks import assert_graphs_draw_anew_and_replay_by_seed, assert_relative


@pytest.mark.gpu
def test_graphs_draw_anew_and_replay_by_seed() -> None:
    bnn = br.bayesianize(nn.Linear(64, 32), br.KTied(2, 0.3), estimator=br.WeightSample()).cuda()
    assert_graphs_draw_anew_and_replay_by_seed(bnn)


@pytest.mark.gpu
def test_a_recorded_step_is_that_of_its_draws() -> None:
    """As each replay leaves the draws that it used where the recording had them."""
    bnn = model("cuda")
    seen: dict[str, Tensor] = {}

    def step() -> tuple[Tensor, ...]:
        bnn.zero_grad()
        loss = nll_of(bnn) + br.kl(bnn) / 50
        loss.backward()
        return (loss.detach(), *(parameter.grad for parameter in bnn.parameters()))

    def look(*_: object) -> None:
        if bnn.draws.in_pass:  # and not that of a copy, whose hook this is, too
            seen.update({name: bnn.draws.tensor(home, name).detach() for name, home in bnn.homes().items()})

    bnn.module.head.register_forward_hook(look)
    recorded = Captured(step, torch.device("cuda"))
    before = None
    for _ in range(6):
        loss, *slopes = recorded()
        want, total = at_given_draws(bnn, seen)
        assert_relative(loss, total, 1e-5)
        for mine, theirs in zip(slopes, want, strict=True):
            assert_relative(mine, theirs, 1e-4)
        assert loss.item() != before
        before = loss.item()


def test_steps_that_python_starts_one_by_one_draw_wide_weights_where_recorded_ones_do_not() -> None:
    """Of a GPU, whose prices are asked for on a device without memory."""
    layer = br.bayesianize(nn.Linear(4096, 4096), br.KTied(2)).module
    posterior, x = layer.homes["weight"](), torch.empty(1024, 4096, device="meta")

    def chosen() -> br.estimators.Estimator:
        return br.Auto().choose(posterior, layer.contraction, x)

    assert isinstance(chosen(), br.WeightSample)
    with recorded_step():
        assert isinstance(chosen(), br.LocalReparam)
    assert isinstance(chosen(), br.WeightSample)


@pytest.mark.gpu
def test_the_first_pass_leaves_the_generator_as_later_ones_do() -> None:
    """In which an estimator chooses local noise, for which nothing is drawn before the pass."""
    bnn = br.bayesianize(nn.Linear(4096, 4096, bias=False), br.KTied(2, 0.3)).cuda()
    x = torch.randn(16, 4096, device="cuda")
    outputs = []
    with recorded_step():
        for _ in range(2):
            torch.manual_seed(1)
            outputs.append(torch.stack([bnn(x), bnn(x)]))
    assert isinstance(bnn.module.last_choice[1], br.LocalReparam)
    assert torch.equal(*outputs)
