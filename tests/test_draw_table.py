"""One draw per posterior and pass: whoever reads it, with and without gradients, in passes and outside of them."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import bayesrule as br
from bayesrule.nn import seed_history
from bayesrule.nn.home import Home
from bayesrule.random import Replay

X = torch.linspace(-1, 1, 200, dtype=torch.float64).reshape(5, 40)


class Reader(nn.Module):
    """Calls a layer and reads its weight, in a way that each test chooses."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.fc, self.way = nn.Linear(40, 3).double(), way

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.way == "call-call":
            return self.fc(x), self.fc(x)
        if self.way == "call-keyword":
            return self.fc(x), self.fc(input=x)
        by_function = lambda: F.linear(x, self.fc.weight, self.fc.bias)  # noqa: E731
        if self.way == "call-read":
            return self.fc(x), by_function()
        return by_function(), self.fc(x)


WAYS = ["call-call", "call-keyword", "call-read", "read-call"]


def unseen(way: str, estimator: br.estimators.Estimator) -> br.nn.BayesianModule:
    """A model whose conversion saw one use, as where a path depends on the input."""
    bnn = br.bayesianize(Reader(way), br.Diagonal(init_std=0.5), estimator=estimator)
    bnn.draws.shared.clear()
    bnn.module.fc.estimator = estimator
    return bnn


@pytest.mark.parametrize("way", WAYS[:3])
@pytest.mark.parametrize("estimator", [br.LocalReparam(), br.Flipout()], ids=lambda e: type(e).__name__)
def test_an_unseen_second_use_is_announced_and_then_shared(way: str, estimator: br.estimators.Estimator) -> None:
    bnn = unseen(way, estimator)
    with pytest.warns(UserWarning, match=r"fc\.weight was used twice in one forward pass"):
        first, second = bnn(X)
    assert not torch.equal(first, second)
    for _ in range(2):
        first, second = bnn(X)
        torch.testing.assert_close(first, second, rtol=1e-14, atol=1e-14)


def test_a_layer_called_after_its_weight_was_read_uses_that_draw() -> None:
    first, second = unseen("read-call", br.LocalReparam())(X)
    torch.testing.assert_close(first, second, rtol=1e-14, atol=1e-14)


class PeekFirst(nn.Module):
    """Uses its layer without gradients, then with them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(40, 3).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            peek = self.fc(x)
        return peek, self.fc(x)


def test_a_draw_made_without_gradients_is_made_again_with_them() -> None:
    bnn = br.bayesianize(PeekFirst(), br.KTied(2, init_std=0.5))
    peek, output = bnn(X)
    assert torch.equal(peek, output)
    assert not peek.requires_grad
    output.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in bnn.parameters())


def test_draws_end_with_their_pass_even_if_it_fails() -> None:
    bnn = br.bayesianize(PeekFirst(), br.Diagonal())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bnn(torch.randn(2, 7, dtype=torch.float64))
    assert bnn.draws._depth == 0
    assert not bnn.draws._drawn
    with pytest.raises(ValueError), bnn.draws.at_mean():
        raise ValueError
    assert bnn.draws.random
    assert not torch.equal(bnn(X)[1], bnn(X)[1])


@pytest.mark.parametrize("net", [nn.Linear(40, 3), nn.GRUCell(40, 3), PeekFirst()], ids=lambda n: type(n).__name__)
def test_the_global_seed_fixes_every_pass(net: nn.Module) -> None:
    bnn = br.bayesianize(net.double(), br.Diagonal())

    def passes() -> list[Tensor]:
        torch.manual_seed(3)
        # The network without its root in between; at the end the stream goes on.
        return tree_leaves([bnn(X), bnn.module(X), bnn(X), torch.rand(())])

    for a, b in zip(passes(), passes(), strict=True):
        assert torch.equal(a, b)


def test_a_layer_alone_draws_once_for_its_call() -> None:
    bnn = br.bayesianize(nn.LSTM(3, 4, bidirectional=True), br.Diagonal())
    lstm = bnn.module
    assert not torch.equal(lstm.weight_ih_l0, lstm.weight_ih_l0)  # outside a pass every reading is a draw
    with bnn.draws.root():
        assert lstm.weight_ih_l0 is lstm.weight_ih_l0
        inside = lstm(torch.zeros(2, 1, 3))[0]
        torch.testing.assert_close(lstm(torch.zeros(2, 1, 3))[0], inside, rtol=0, atol=0)
    assert not torch.equal(lstm(torch.zeros(2, 1, 3))[0], inside)


def test_weights_of_a_recurrent_layer_do_not_outlive_their_pass() -> None:
    bnn = br.bayesianize(nn.LSTM(3, 4), br.Diagonal())
    bnn(torch.zeros(2, 1, 3))
    assert bnn.module._flat_weights == []
    plain = br.mean_module(bnn)
    assert [w.data_ptr() for w in plain._flat_weights] == [p.data_ptr() for p in plain.parameters()]


def test_given_weights_are_used_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(40, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    bnn = br.bayesianize(net, br.KTied(2), estimator=br.LocalReparam())
    weights = {name: torch.randn_like(parameter) for name, parameter in net.named_parameters()}
    want = torch.func.functional_call(net, weights, (X,))
    torch.testing.assert_close(bnn.at(weights, X), want, rtol=1e-14, atol=1e-14)
    assert not torch.equal(bnn(X), bnn(X))


def test_a_noise_source_of_ones_own_serves_every_posterior() -> None:
    """Noise is an argument: W = mean + std · ε for the ε handed out, tied or not."""
    net = PeekFirst()
    bnn = br.bayesianize(net, br.Diagonal(init_std=0.3, init_spread=0.0), bias="point")
    epsilon = torch.randn(40, 3, dtype=torch.float64)
    bnn.draws.noise = Replay([epsilon, epsilon])
    want = F.linear(X, net.fc.weight + 0.3 * epsilon.T, net.fc.bias)
    torch.testing.assert_close(bnn(X)[1], want, rtol=1e-12, atol=1e-12)


def test_augmented_layers_draw_weight_and_bias_together() -> None:
    bnn = br.bayesianize(nn.Linear(40, 3).double(), br.MatrixNormal(), estimator=br.WeightSample(), bias="augment")
    assert list(bnn.homes()) == ["weight"]
    epsilon = torch.randn(41, 3, dtype=torch.float64)
    bnn.draws.noise = Replay([epsilon])
    posterior = br.posteriors(bnn)["weight"]
    matrix = posterior.from_noise(epsilon)
    torch.testing.assert_close(bnn(X), X @ matrix[:-1] + matrix[-1], rtol=1e-12, atol=1e-12)


def test_looking_at_a_model_draws_nothing() -> None:
    bnn = br.bayesianize(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(4, 2), nn.LSTM(2, 2)), br.Diagonal())
    before = torch.get_rng_state()
    assert re.search(r"BayesianConv2d\(\s+3, 4, kernel_size=\(3, 3\)", repr(bnn))
    assert "bias=True" in repr(bnn)
    str(bnn.conversion)
    bnn.state_dict()
    br.kl(bnn)
    br.posteriors(bnn)
    br.mean_module(bnn)
    copy.deepcopy(bnn)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_history_finds_a_state_again_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_history, "LENGTH", 2)
    history = seed_history.SeedHistory()
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        assert history.recall() is None
        history.record(seed)
    recalled = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        recalled.append(history.recall())
    assert recalled == [None, 2, 3]


def test_a_copied_table_knows_no_seeds_of_past_passes() -> None:
    table = br.bayesianize(nn.Linear(4, 2)).draws
    table._history.record(7)
    assert table._history.recall() == 7
    assert copy.deepcopy(table)._history.recall() is None


def test_homes_are_those_of_all_modules_once_and_in_order() -> None:
    layer = nn.Linear(4, 4)
    net = nn.Sequential(layer, nn.Sequential(nn.LayerNorm(4), layer), nn.MultiheadAttention(4, 2), nn.Linear(4, 1))
    bnn = br.bayesianize(net)
    walked = [module for module in bnn.modules() if isinstance(module, Home)]
    assert list(bnn.homes().values()) == walked
    assert list(bnn.homes()) == [home.name for home in walked]
    assert len(walked) == 2 + 4 + 2
