"""Gradients between blocks and steps: averages, parameters without them, half precision, clipping, guards."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.optim import NoisyAdam, NoisyBlockTridiagonal, NoisyEKFAC, NoisyFull, NoisyKFAC
from bayesrule.optim.kronecker_inverse import step_damping
from optim_problems import (
    EVERY,
    NAMES,
    OPTIMIZERS,
    Recorded,
    loss_of,
    make,
    network,
    regression,
    same,
    silent,
    step,
    values,
)

every = pytest.mark.parametrize("kind", OPTIMIZERS, ids=NAMES)
all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
X, Y = regression()


@all_kinds
def test_blocks_before_a_step_are_averaged(kind) -> None:
    """Two halves of a batch, each in its own block (at the mean), equal the whole: gradients and curvatures."""
    halves, whole = make(kind, likelihood=None, seed=1), make(kind, likelihood=None, seed=1)
    for _ in range(2):
        for part in (slice(0, 6), slice(6, 12)):
            with halves.sampled_params(noise=silent):
                halves.zero_grad()
                (halves.model(X[part]) - Y[part]).square().sum(-1).mean().backward()
        halves.step()
        step(whole, lambda: (whole.model(X) - Y).square().sum(-1).mean(), noise=silent)
    for got, want in zip(values(halves), values(whole), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)
    for name, posterior in halves.posteriors().items():
        torch.testing.assert_close(posterior.variance, whole.posteriors()[name].variance, rtol=1e-9, atol=1e-12)


@every
def test_backward_passes_inside_a_block_accumulate_as_usual(kind) -> None:
    """One draw, three weighted parts of the batch: the gradient is the batch's, and so is the (exact) curvature."""
    parts, whole = (make(kind, warm_up=False, fisher="exact") for _ in range(2))
    recorded = Recorded()
    with parts.sampled_params(noise=recorded):
        for part in (slice(0, 3), slice(3, 9), slice(9, 12)):
            (len(X[part]) / 12 * parts.nll(parts.model(X[part]), Y[part])).backward()
    with whole.sampled_params(noise=lambda *_: recorded.noises.pop(0)):
        loss_of(whole).backward()
    for optimizer in (parts, whole):
        optimizer.step()
    for got, want in zip(values(parts), values(whole), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)
    for name, posterior in parts.posteriors().items():
        torch.testing.assert_close(posterior.variance, whole.posteriors()[name].variance, rtol=1e-9, atol=1e-12)


@every
def test_several_draws_average_their_gradients(kind) -> None:
    optimizer = make(kind, warm_up=False)
    seen = []
    for _ in range(3):
        with optimizer.sampled_params():
            optimizer.zero_grad()
            loss_of(optimizer).backward()
            seen.append([p.grad.clone() for p in optimizer.model.parameters()])
    for index, parameter in enumerate(optimizer.model.parameters()):
        torch.testing.assert_close(parameter.grad, torch.stack([each[index] for each in seen]).mean(0))


@every
def test_frozen_and_unused_parameters_stay(kind) -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head, self.frozen = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)
            self.first.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.frozen(torch.tanh(self.first(x)))))

    net = Partly().double()
    optimizer = make(kind, net, warm_up=False)
    before = copy.deepcopy(net.state_dict())
    for _ in range(2):
        step(optimizer, lambda: loss_of(optimizer))
    assert [row.name for row in optimizer.plan if row.rule == "none"] == ["first.bias", "frozen.weight", "frozen.bias"]
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]) == (name in ("first.bias", "frozen.weight", "frozen.bias"))


@pytest.mark.parametrize("kind", [NoisyAdam, NoisyKFAC, NoisyEKFAC])
def test_a_layer_without_a_gradient_is_left_alone(kind) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.turn = nn.Linear(3, 2), nn.Linear(3, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) if self.turn == 0 else self.two(x)

    net = Two().double()
    optimizer = make(kind, net)
    for turn in (0, 1, 0):
        net.turn = turn
        before = copy.deepcopy(net.state_dict())
        step(optimizer, lambda: loss_of(optimizer))
        moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
        used = "one" if turn == 0 else "two"
        assert moved == {f"{used}.weight", f"{used}.bias"}
    assert [state.steps for state in optimizer.states.values()] == [2, 1]


@pytest.mark.parametrize("kind", [NoisyFull, NoisyBlockTridiagonal])
def test_a_layer_that_is_never_called_keeps_its_prior_in_a_posterior_of_all(kind) -> None:
    class Partly(nn.Module):
        def __init__(self, *, unused: bool) -> None:
            super().__init__()
            self.first, self.head = network(3, 4, 2)[::2]
            if unused:
                self.unused = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.first(x)))

    optimizers = [make(kind, Partly(unused=unused).double(), fisher="exact") for unused in (True, False)]
    with torch.no_grad():
        for one, other in zip(*(optimizer.model.parameters() for optimizer in optimizers), strict=False):
            other.copy_(one)
    for optimizer in optimizers:
        for _ in range(3):
            with optimizer.sampled_params(noise=silent):
                optimizer.zero_grad()
                loss_of(optimizer).backward()
            optimizer.step()
    (joint,), (alone,) = (list(optimizer.posteriors().values()) for optimizer in optimizers)
    size = alone.mean.shape[-1]
    torch.testing.assert_close(joint.mean[:size], alone.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(joint.variance[:size], alone.variance, rtol=1e-10, atol=1e-12)
    unused = joint.variance[size:]
    torch.testing.assert_close(unused, torch.full_like(unused, 0.8**2), rtol=1e-9, atol=0)


@every
def test_layers_of_different_precisions_train(kind) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, 4).double(), nn.Linear(4, 2).float()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.first(x)).float())

    net = Mixed()
    optimizer = make(kind, net)
    before = copy.deepcopy(net.state_dict())
    for _ in range(3):
        step(optimizer, lambda: loss_of(optimizer))
    for name, value in net.state_dict().items():
        assert value.dtype == before[name].dtype
        assert value.isfinite().all()
        assert not torch.equal(value, before[name])


@every
def test_half_precision_parameters_have_float32_states(kind) -> None:
    net = network(3, 4, 2, dtype=torch.float32)
    net[0].to(torch.bfloat16)
    wrapped = nn.Sequential(net[0], nn.Tanh(), _Cast(), net[2])
    optimizer = make(kind, wrapped, lr=1e-4)
    x = X.to(torch.bfloat16)
    start = optimizer.mean(next(iter(optimizer.groups.values()))).clone()
    for _ in range(3):
        step(optimizer, lambda: optimizer.nll(wrapped(x), Y.float()))
    assert net[0].weight.dtype == torch.bfloat16
    assert net[0].weight.grad.dtype == torch.bfloat16
    for posterior in optimizer.posteriors().values():
        assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
    moved = optimizer.mean(next(iter(optimizer.groups.values()))) - start
    assert moved.abs().max() > 0  # smaller than a bfloat16 rounds to, and not lost
    assert torch.equal(optimizer.means()["0.weight"].to(torch.bfloat16), net[0].weight)
    assert br.predict(optimizer, x, samples=2).outputs.shape == (2, 12, 2)


class _Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


@all_kinds
def test_schedulers_and_closures(kind) -> None:
    optimizer = make(kind, max_kl=None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.0 if k else 1.0)
    step(optimizer, lambda: loss_of(optimizer))
    schedule.step()
    mean = values(optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss_of(optimizer)
        value.backward()
        return value

    assert optimizer.step(closure).item() > 0
    assert same(values(optimizer), mean)  # the scheduled step size is zero
    assert optimizer.steps == 2


@every
def test_clipping_acts_on_the_gradient_between_the_block_and_the_step(kind) -> None:
    """A gradient clipped to nothing leaves the prior's pull alone: the step of a loss that is zero."""
    clipped, empty = make(kind, fisher="exact", max_kl=None), make(kind, fisher="exact", max_kl=None)
    for optimizer, factor in ((clipped, 1.0), (empty, 0.0)):
        with optimizer.sampled_params(noise=silent):
            (factor * loss_of(optimizer)).backward()
        assert (torch.nn.utils.clip_grad_norm_(optimizer.model.parameters(), 1e-13) > 1e-3) == (factor > 0)
        optimizer.step()
    assert not same(values(empty), values(make(kind)))
    for got, want in zip(values(clipped), values(empty), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@all_kinds
def test_a_gradient_that_is_not_finite_changes_nothing(kind) -> None:
    optimizer = make(kind)
    mean = values(optimizer)
    with optimizer.sampled_params():
        (loss_of(optimizer) * float("nan")).backward()
    with pytest.raises(InvalidArgument, match="not finite"):
        optimizer.step()
    assert same(values(optimizer), mean)
    optimizer.zero_grad()
    step(optimizer, lambda: loss_of(optimizer))
    assert not same(values(optimizer), mean)


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in OPTIMIZERS), (NoisyKFAC, {"damping": "exact"})], ids=[*NAMES, "NoisyKFAC, exact damping"],
)  # fmt: skip
def test_the_guard_shortens_the_step_and_counts(kind, options) -> None:
    """½ α² pᵀ(F + γ)p ≤ max_kl, with the posterior's own precision as the metric: (F + γ) = (λ/N) Σ⁻¹.

    Where damping is exact, that of the step is by more than γ, and so is the metric of its guard.
    """
    optimizer = make(kind, lr=10.0, max_kl=1e-3, **options)
    before = {name: q.mean for name, q in optimizer.posteriors().items()}
    step(optimizer, lambda: loss_of(optimizer), noise=silent)
    assert optimizer.limited_steps == len(optimizer.groups)
    for name, posterior in optimizer.posteriors().items():
        change = posterior.mean - before[name]
        nats = 0.5 * (change * posterior.covariance.solve(change)).sum() / 50
        if options or kind is NoisyEKFAC:
            assert nats < 1e-3
            inverse = optimizer.states[name].inverse
            damping = (1 / (50 * posterior.covariance.spectrum) - inverse.spectrum).mean()
            metric = inverse.spectrum + step_damping(inverse.spectrum, damping)
            nats = 0.5 * (inverse.enter(change).square() * metric).sum()
        torch.testing.assert_close(nats, torch.tensor(1e-3, dtype=torch.float64), rtol=1e-6, atol=0)
