"""Optimizers on networks of all kinds: convolutions, tied weights, norm layers, attention, checkpoints, compiled."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim import VOGN, NoisyAdam, NoisyEKFAC, NoisyKFAC
from optim_problems import BINARY, EVERY, NAMES, OPTIMIZERS, make, network, regression, silent, step

every = pytest.mark.parametrize("kind", OPTIMIZERS, ids=NAMES)
all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
LAYERWISE = [NoisyAdam, NoisyKFAC, NoisyEKFAC]
layerwise = pytest.mark.parametrize("kind", LAYERWISE)
X, Y = regression()


class Tied(nn.Module):
    """One weight in two layers with biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 3, 2, stride=2), nn.BatchNorm2d(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((-2, -1)))


def test_tied_weights_have_one_posterior_and_one_draw() -> None:
    net = Tied().double()
    optimizer = make(NoisyKFAC, net, warm_up=False)
    assert "one posterior for 2 layers" in optimizer.plan["first.weight"].note
    assert set(optimizer.groups) == {"first.weight", "first.bias", "second.bias", "head.weight"}
    with optimizer.sampled_params():
        assert net.first.weight is net.second.weight
    step(optimizer, lambda: optimizer.nll(net(X), Y))
    assert br.predict(optimizer, X, samples=3).outputs.shape == (3, 12, 2)


def test_the_uses_of_a_tied_weight_are_positions() -> None:
    """A sums over both uses, S averages over them   [Grosse & Martens 2016]; the squares are of the summed gradient."""
    net, x = Tied().double(), X
    kfac, adam = (make(kind, net, likelihood=None, lr=0.0, warm_up=True) for kind in (NoisyKFAC, NoisyAdam))
    for optimizer in (kfac, adam):
        step(optimizer, lambda: (net(x) - Y).square().sum(-1).mean(), noise=silent)
    first = net.first(x)
    hidden = torch.tanh(first)
    second = net.second(hidden)
    outputs = net.head(torch.tanh(second))
    grads = torch.autograd.grad((outputs - Y).square().sum(), [first, second])
    state = kfac.states["first.weight"]
    torch.testing.assert_close(state.fan_in, (x.T @ x + hidden.T @ hidden) / 12)
    torch.testing.assert_close(state.fan_out, sum(g.T @ g for g in grads) / 24)
    per_example = sum(torch.einsum("bi,bj->bij", a, g) for a, g in zip((x, hidden), grads, strict=True))
    torch.testing.assert_close(adam.states["first.weight"].squares, per_example.square().mean(0))
    torch.testing.assert_close(adam.states["first.bias"].squares, grads[0].square().mean(0)[None])


@layerwise
def test_convolutions_and_norm_layers(kind) -> None:
    torch.manual_seed(0)
    net = Convolutional().double()
    optimizer = make(kind, net, likelihood=br.Categorical())
    assert {row.name: row.rule for row in optimizer.plan}["norm.weight"] == "Adam"
    assert "BatchNorm2d" in optimizer.plan["norm.weight"].note
    assert "Adam" in str(optimizer.plan)
    images, classes = torch.randn(6, 1, 6, 6, dtype=torch.float64), torch.arange(6) % 2
    before = net.norm.weight.detach().clone()
    for _ in range(3):
        step(optimizer, lambda: nn.functional.cross_entropy(net(images), classes))
    assert not torch.equal(net.norm.weight, before)
    assert not optimizer.batchable
    prediction = br.predict(optimizer, images, samples=3)
    assert prediction.probs.shape == (6, 2)
    assert net.training


def test_plain_parameters_follow_adam() -> None:
    """All but the head is left to Adam: the same iterates as torch's, at the head's mean."""
    net, twin = network(3, 4, 2), network(3, 4, 2)
    optimizer = make(NoisyKFAC, net, plain=("0",), plain_lr=0.01, lr=0.0)
    theirs = torch.optim.Adam(twin[0].parameters(), lr=0.01)
    for _ in range(4):
        step(optimizer, lambda: (net(X) - Y).square().mean(), noise=silent)
        theirs.zero_grad()
        (twin(X) - Y).square().mean().backward()
        theirs.step()
    torch.testing.assert_close(net[0].weight, twin[0].weight, rtol=1e-12, atol=1e-13)
    assert optimizer.plan["0.weight"].note == "listed in plain"
    assert optimizer.plan["2.weight"].rule == "NoisyKFAC"


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_a_weight_that_is_plain_without_its_bias(kind) -> None:
    """Binary optimizers leave all biases to Adam; in others the bias goes on having a posterior."""
    told = r"'0.weight' is in plain, but '0.bias' of the same layer is not, .* of its own. .*'0.bias'.* or '0'"
    with nullcontext() if kind in BINARY else pytest.warns(UserWarning, match=told):
        optimizer = make(kind, network(3, 4, 2), plain=["0.weight"])
    if kind not in BINARY:
        assert optimizer.plan["0.bias"].rule == kind.__name__
    for plain in (["0"], ["0.weight", "0.bias"], ["0.bias"]):
        make(kind, network(3, 4, 2), plain=plain)


def test_grouped_convolutions_are_refused_or_plain() -> None:
    net = nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(2, 2)).double()
    with pytest.raises(Unsupported, match="plain="):
        make(NoisyKFAC, net)
    optimizer = make(NoisyKFAC, net, plain=("0",))
    images = torch.randn(12, 2, 3, 3, dtype=torch.float64)
    step(optimizer, lambda: optimizer.nll(net(images), Y))
    with pytest.raises(InvalidArgument, match="plain names"):
        make(NoisyKFAC, net, plain=("nothing",))
    with pytest.raises(InvalidArgument, match="collection"):
        make(NoisyKFAC, net, plain="0")


def test_layers_across_positions_are_refused_by_the_chain() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Flatten(1), nn.Linear(6, 2)).double()
    optimizer = make(br.optim.NoisyBlockTridiagonal, net)
    with pytest.raises(Unsupported, match="one row for each example"):
        step(optimizer, lambda: optimizer.nll(net(X[:, None].expand(12, 3, 3)), Y))
    assert not net[0]._forward_hooks


def test_attention_is_tapped_where_its_layers_are_called() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), nn.Flatten(1), nn.Linear(12, 2))
    optimizer = make(NoisyKFAC, net)
    rules = {row.name: row.rule for row in optimizer.plan}
    assert rules["0.linear1.weight"] == "NoisyKFAC"
    assert rules["0.self_attn.out_proj.weight"] == rules["0.self_attn.in_proj_weight"] == "Adam"
    x = torch.randn(12, 3, 4)
    before = net[0].self_attn.out_proj.weight.detach().clone()
    step(optimizer, lambda: optimizer.nll(net(x), Y.float()))
    assert not torch.equal(net[0].self_attn.out_proj.weight, before)
    assert br.predict(optimizer, x, samples=2).outputs.shape == (2, 12, 2)


def test_an_embedding_tied_to_a_layer_is_plain() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.body, self.decoder = nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5)
            self.decoder.weight = self.embedding.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.decoder(torch.tanh(self.body(self.embedding(tokens))))

    net = Language().double()
    optimizer = make(NoisyKFAC, net, likelihood=br.Categorical())
    assert optimizer.plan["embedding.weight"].rule == "Adam"
    assert "Embedding" in optimizer.plan["embedding.weight"].note
    tokens = torch.randint(5, (4, 6))
    step(optimizer, lambda: optimizer.nll(net(tokens), tokens))


def test_a_weight_that_is_read_without_calling_its_layer_speaks_up() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.layer.weight, self.layer.bias)

    net = Reader().double()
    optimizer = make(NoisyKFAC, net)
    with pytest.raises(InvalidArgument, match="not called"):
        step(optimizer, lambda: optimizer.nll(net(X), Y))


@every
def test_activation_checkpointing(kind) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return self[2](checkpoint(lambda value: self[1](self[0](value)), x, use_reentrant=False))

    plain = network(3, 4, 2)
    saved = Checkpointed(*network(3, 4, 2))
    means = []
    for net in (plain, saved):
        optimizer = make(kind, net, fisher="exact")
        for _ in range(2):
            step(optimizer, lambda net=net, optimizer=optimizer: optimizer.nll(net(X), Y))
        means.append([p.detach() for p in net.parameters()])
    for got, want in zip(*means, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)


@all_kinds
def test_compiled_networks(kind) -> None:
    """The same iterates as the plain network's: passes that gather curvature run uncompiled."""
    torch._dynamo.reset()
    means = []
    for compiled in (False, True):
        net = network(3, 4, 2)
        called = torch.compile(net, backend="aot_eager") if compiled else net
        optimizer = make(kind, called, fisher="exact", T_stats=2)
        for _ in range(5):
            step(optimizer, lambda called=called, optimizer=optimizer: optimizer.nll(called(X), Y))
        assert set(optimizer.groups) <= {"0.weight", "2.weight"}
        means.append([p.detach() for p in net.parameters()])
    for got, want in zip(*means, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)


@all_kinds
def test_autocast_leaves_states_in_full_precision(kind) -> None:
    torch.manual_seed(0)
    net = network(3, 4, 2, dtype=torch.float32)
    optimizer = make(kind, net)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            step(optimizer, lambda: optimizer.nll(net(X.float()), Y.float()))
    for posterior in optimizer.posteriors().values():
        assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
        assert posterior.variance.isfinite().all()


@all_kinds
def test_gradient_scaling_skips_a_step_and_goes_on(kind) -> None:
    net, twin = network(3, 4, 2, dtype=torch.float32), network(3, 4, 2, dtype=torch.float32)
    scaled, plain = make(kind, net, fisher="exact"), make(kind, twin, fisher="exact")
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = X.float(), Y.float()
    for factor in (1.0, float("inf"), 1.0):
        before = [p.detach().clone() for p in net.parameters()]
        with scaled.sampled_params(noise=silent, loss_scale=scaler.get_scale()):
            scaled.zero_grad()
            scaler.scale(factor * scaled.nll(net(x), y)).backward()
        scaler.step(scaled)
        scaler.update()
        moved = any(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))
        assert moved == (factor == 1.0)
        if factor == 1.0:
            step(plain, lambda: plain.nll(twin(x), y), noise=silent)
    assert (scaled.steps, scaled.skipped_steps) == (2, 1)
    for got, want in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_empirical_fisher_must_know_the_loss_scale() -> None:
    net, twin = network(3, 4, 2), network(3, 4, 2)
    scaled, plain = make(NoisyKFAC, net, fisher="empirical"), make(NoisyKFAC, twin, fisher="empirical")
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with scaled.sampled_params():
        scaler.scale(scaled.nll(net(X), Y)).backward()
    with pytest.raises(InvalidArgument, match="loss_scale"):
        scaler.step(scaled)
    scaled.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with scaled.sampled_params(loss_scale=scaler.get_scale()):
        scaler.scale(scaled.nll(net(X), Y)).backward()
    scaler.unscale_(scaled)
    scaler.step(scaled)
    step(plain, lambda: plain.nll(twin(X), Y))
    torch.testing.assert_close(net[0].weight, twin[0].weight, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("first", ["examples", "positions"])
def test_examples_in_the_second_dimension_are_warned_about(first: str) -> None:
    """Squares of gradients of an example need its positions together."""
    model, x = Averaged(nn.Linear(3, 2).double(), first), torch.randn(8, 5, 3, dtype=torch.float64)
    optimizer = make(VOGN, model, likelihood=br.Gaussian(0.5))
    given = x if first == "examples" else x.transpose(0, 1)
    expected = nullcontext() if first == "examples" else pytest.warns(UserWarning, match="batch_first=True")
    with expected:
        step(optimizer, lambda: optimizer.nll(model(given), torch.zeros(8, 2, dtype=torch.float64)))


class Averaged(nn.Module):
    """A layer at every position, and the mean of its outputs."""

    def __init__(self, layer: nn.Module, first: str) -> None:
        super().__init__()
        self.layer, self.dim = layer, 1 if first == "examples" else 0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(self.dim)
