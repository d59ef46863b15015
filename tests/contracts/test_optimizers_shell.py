"""What every optimizer that holds a posterior keeps: its weights, its state, and what was predicted with it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import BayesruleError, InvalidArgument
from bayesrule.typing import Drawable
from optim_problems import EVERY, NAMES, OPTIMIZERS, loss_of, make, network, regression, same, step, values

every = pytest.mark.parametrize("kind", OPTIMIZERS, ids=NAMES)
all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
X, Y = regression()


@all_kinds
def test_a_draw_is_in_the_weights_inside_and_the_mean_outside(kind) -> None:
    optimizer = make(kind, warm_up=False)
    mean = values(optimizer)
    with optimizer.sampled_params():
        first = values(optimizer)
    with optimizer.sampled_params():
        second = values(optimizer)
    assert same(values(optimizer), mean)
    held = [row.rule == kind.__name__ for row in optimizer.plan]
    drawn = [kind not in (br.optim.OGN, br.optim.STE) and each for each in held]  # these two train at the mean
    assert any(held)
    for others in (mean, second):
        assert [not torch.equal(a, b) for a, b in zip(first, others, strict=True)] == drawn


@all_kinds
def test_the_mean_and_earlier_gradients_return_after_an_exception(kind) -> None:
    optimizer = make(kind, warm_up=False)
    mean = values(optimizer)
    with optimizer.sampled_params():
        loss_of(optimizer).backward()
    before = [p.grad.clone() for p in optimizer.model.parameters()]

    def failing() -> None:
        with optimizer.sampled_params():
            loss_of(optimizer).backward()
            raise KeyError("the body's own")

    with pytest.raises(KeyError, match="the body's own"):
        failing()
    assert same(values(optimizer), mean)
    assert same([p.grad for p in optimizer.model.parameters()], before)
    assert not optimizer.model[0]._forward_hooks
    optimizer.step()  # from the first block alone
    assert not same(values(optimizer), mean)


@all_kinds
def test_a_resumed_run_is_the_same_bit_for_bit(kind, tmp_path) -> None:
    def run(optimizer, scheduler, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            found.append(step(optimizer, lambda: loss_of(optimizer)))
            scheduler.step()
        return found

    def start(seed: int):
        optimizer = make(
            kind, network(3, 4, 2, seed=seed), likelihood=br.likelihoods.GaussianGammaNoise(), seed=seed, T_inv=3
        )
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    whole, schedule = start(0)
    run(whole, schedule, 4)
    saved = {"net": whole.model.state_dict(), "opt": whole.state_dict(), "schedule": schedule.state_dict()}
    torch.save(saved, tmp_path / "checkpoint.pt")
    want = run(whole, schedule, 4)

    resumed, again = start(1)
    loaded = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.model.load_state_dict(loaded["net"])
    resumed.load_state_dict(loaded["opt"])
    again.load_state_dict(loaded["schedule"])
    assert resumed.steps == 4
    assert run(resumed, again, 4) == want
    assert same(values(resumed), values(whole))
    for name, posterior in resumed.posteriors().items():
        assert torch.equal(posterior.variance, whole.posteriors()[name].variance)
    assert torch.equal(resumed.likelihood.posterior_rate, whole.likelihood.posterior_rate)


@all_kinds
def test_a_state_between_a_block_and_its_step_says_what_it_lacks(kind) -> None:
    optimizer = make(kind)
    for _ in range(2):
        with optimizer.sampled_params():
            loss_of(optimizer).backward()
    with pytest.warns(UserWarning, match=r"without the gradients and curvatures of 2 blocks .* after step\(\)"):
        state = optimizer.state_dict()
    make(kind).load_state_dict(state)
    optimizer.step()
    optimizer.state_dict()
    with optimizer.sampled_params():
        loss_of(optimizer).backward()
    optimizer.zero_grad()
    assert optimizer.state_dict()["posterior"]["steps"] == 1


@all_kinds
def test_a_foreign_state_is_refused(kind) -> None:
    optimizer = make(kind)
    with pytest.raises(InvalidArgument, match="not the state of"):
        optimizer.load_state_dict(torch.optim.Adam(optimizer.model.parameters()).state_dict())
    other = make(kind, network(3, 5, 2))
    with pytest.raises(BayesruleError):
        optimizer.load_state_dict(other.state_dict())


@every
def test_predictions_and_posteriors(kind) -> None:
    optimizer = make(kind)
    step(optimizer, lambda: loss_of(optimizer))
    assert isinstance(optimizer, Drawable)
    posteriors = br.posteriors(optimizer)
    before = {name: (q.mean.clone(), q.variance.clone()) for name, q in posteriors.items()}
    prediction = br.predict(optimizer, X, samples=8)
    kept = prediction.outputs.clone()
    assert prediction.outputs.shape == (8, 12, 2)
    assert prediction.epistemic_std.min() > 0
    mean = values(optimizer)
    step(optimizer, lambda: loss_of(optimizer))
    assert not same(values(optimizer), mean)
    assert torch.equal(prediction.outputs, kept)
    for name, (centre, variance) in before.items():
        assert torch.equal(posteriors[name].mean, centre)
        assert torch.equal(posteriors[name].variance, variance)
    looped = br.predict(optimizer, X, samples=8, strategy="loop").outputs
    torch.testing.assert_close(br.predict(optimizer, X, samples=8, strategy="vmap").outputs, looped)
    names = {part.name for q in posteriors.values() for part in q.parts}
    assert names == {name for name, _ in optimizer.model.named_parameters()}


@every
def test_predictions_come_from_the_posterior(kind) -> None:
    """At one draw of the weights the outputs are the network's."""
    optimizer = make(kind)
    step(optimizer, lambda: loss_of(optimizer))
    weights = {}
    for posterior in optimizer.posteriors().values():
        weights |= posterior.split(posterior.rsample())
    want = torch.func.functional_call(optimizer.model, weights, (X,))
    assert torch.equal(optimizer.at(weights, X), want)
    assert torch.equal(optimizer.at({}, X), optimizer.model(X))


@all_kinds
def test_misuse_speaks_up(kind) -> None:
    optimizer = make(kind)
    with pytest.raises(InvalidArgument, match="step\\(\\) follows a block"):
        optimizer.step()
    with optimizer.sampled_params():
        with pytest.raises(InvalidArgument, match="inside sampled_params"), optimizer.sampled_params():
            pass
        with pytest.raises(InvalidArgument, match="hold a draw"):
            optimizer.state_dict()
    with optimizer.sampled_params():
        value = loss_of(optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()
    with pytest.raises(InvalidArgument, match="n_data"):
        make(kind, n_data=0)
    with pytest.raises(InvalidArgument, match="no trainable"):
        make(kind, nn.BatchNorm1d(3))
