"""Every example network, converted: random in every mode, differentiable, copied, and itself at the mean."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import cache

import networks
import pytest
import torch
from networks import Network
from torch import Tensor, nn

import bayesrule as br
import bayesrule.random
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import Family

FAMILIES: dict[str, Family] = {
    "diagonal": br.Diagonal(init_std=0.1),
    "k-tied": br.KTied(2, init_std=0.1),
    "matrix-normal": br.MatrixNormal(init_std=0.1),
}
SPREADS = ("log_std", "fan_in_log_factor", "fan_in_log_cholesky")
"""One parameter of every posterior, besides its mean."""
names = pytest.mark.parametrize("name", networks.NAMES)
families = pytest.mark.parametrize("family", FAMILIES)
pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]


@cache
def convert(name: str, family: str) -> tuple[Network, BayesianModule]:
    """Shared by the tests, which leave it as it is."""
    network = networks.network(name)
    return network, br.bayesianize(network.module, FAMILIES[family], br.Normal(0.5))


def outputs(network: Network, module: nn.Module, seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return network(module)


def differ(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(not torch.equal(a, b) for a, b in zip(first, second, strict=True))


def assert_equal(first: list[Tensor], second: list[Tensor]) -> None:
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@names
@families
def test_outputs_are_random_in_train_and_eval_with_and_without_gradients(name: str, family: str) -> None:
    network, bnn = convert(name, family)
    bnn = copy.deepcopy(bnn)
    for training in (True, False):
        bnn.train(training)  # the examples have dropout 0, and their norm layers give the same output again
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                assert differ(network(bnn), network(bnn)), (training, grad)


@names
@families
def test_equals_the_network_at_the_mean(name: str, family: str) -> None:
    network, bnn = convert(name, family)
    for grad in (True, False):  # torch takes a fast path through some layers without gradients
        with torch.set_grad_enabled(grad):
            want = network(network.module)
            for got in (network(bnn.at_mean), network(br.mean_module(bnn))):
                for a, b in zip(got, want, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@names
def test_mean_module_is_the_plain_network_again(name: str) -> None:
    network, bnn = convert(name, "k-tied")
    plain, original = br.mean_module(bnn), network.module
    assert list(plain.state_dict()) == list(original.state_dict())
    assert_equal(list(plain.state_dict().values()), list(original.state_dict().values()))
    pairs = list(zip(plain.modules(), original.modules(), strict=True))
    assert all(type(a) is type(b) for a, b in pairs)
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in original.named_parameters()]  # ties, and order
    torch.optim.SGD(plain.parameters(), lr=1.0)
    (sum(output.sum() for output in network(plain))).backward()


@names
@families
def test_every_parameter_gets_a_finite_gradient(name: str, family: str) -> None:
    network, bnn = convert(name, family)
    loss = sum(output.square().mean() for output in network(bnn)) + br.kl(bnn)
    parameters = dict(bnn.named_parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, [*parameters.values()]), strict=True):
        assert gradient.isfinite().all(), parameter


@names
@families
def test_each_posterior_is_drawn_once_in_a_pass(name: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, bnn = convert(name, family)
    requests, draw = [], bayesrule.random.draw
    monkeypatch.setattr(bayesrule.random, "draw", lambda *args: requests.append(args) or draw(*args))
    loss = sum(output.square().sum() for output in network(bnn))
    spreads = [p for n, p in bnn.named_parameters() if n.rpartition(".")[2] in SPREADS]
    gradients = torch.autograd.grad(loss, spreads, allow_unused=True)
    assert len(spreads) == len(bnn.homes())
    used = sum(gradient is not None for gradient in gradients)  # a layer off the path taken is not drawn
    assert len(requests) == used > 0
    with torch.no_grad():
        network(bnn)
    assert len(requests) == 2 * used


def _by_state(bnn: BayesianModule, network: Network, family: Family) -> BayesianModule:
    fresh = br.bayesianize(network.module, family, br.Normal(0.5))
    fresh.load_state_dict(bnn.state_dict(), strict=True)
    return fresh


COPIES: dict[str, Callable[[BayesianModule, Network, Family], BayesianModule]] = {
    "deepcopy": lambda bnn, *_: copy.deepcopy(bnn),
    "pickle": lambda bnn, *_: pickle.loads(pickle.dumps(bnn)),
    "state_dict": _by_state,
}


@names
@pytest.mark.parametrize("how", COPIES)
def test_copies_after_a_pass_are_equal_and_independent(name: str, how: str) -> None:
    network = networks.network(name)
    bnn = br.bayesianize(network.module, FAMILIES["k-tied"], br.Normal(0.5))
    network(bnn)
    twin = COPIES[how](bnn, network, FAMILIES["k-tied"])
    before = outputs(network, bnn, 3)
    assert_equal(outputs(network, twin, 3), before)
    assert twin.state_dict().keys() == bnn.state_dict().keys()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    sum(output.square().sum() for output in network(twin)).backward()
    optimizer.step()
    assert differ(outputs(network, twin, 3), before)
    assert_equal(outputs(network, bnn, 3), before)


@names
def test_changes_precision_as_any_module(name: str) -> None:
    network, bnn = convert(name, "k-tied")
    bnn = copy.deepcopy(bnn)
    single = Network(bnn.to(torch.float32), *networks.to_dtype((network.args, network.kwargs), torch.float32))
    first, second = single(bnn), single(bnn)
    assert differ(first, second)
    assert all(output.dtype == torch.float32 for output in first)
    bnn.double()
    want = network(network.module)
    for a, b in zip(network(bnn.at_mean), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert all(parameter.dtype == torch.float64 for parameter in bnn.parameters())


@names
def test_leaves_the_original_network_as_it_was(name: str) -> None:
    network = networks.network(name)
    calls = []
    network.module.register_forward_hook(lambda *_: calls.append(1))
    network.module.train()
    state = copy.deepcopy(network.module.state_dict())
    kinds = [type(module) for module in network.module.modules()]
    identities = [id(parameter) for parameter in network.module.parameters()]
    bnn = br.bayesianize(network.module, br.KTied(2))
    network.module.eval()
    before = network(network.module)
    network(bnn)
    sum(output.square().sum() for output in network(bnn)).backward()
    assert [type(module) for module in network.module.modules()] == kinds
    assert [id(parameter) for parameter in network.module.parameters()] == identities
    assert all(parameter.grad is None for parameter in network.module.parameters())
    assert bnn.training
    assert len(calls) == 3  # the copy keeps the hook
    assert_equal(list(network.module.state_dict().values()), list(state.values()))
    assert_equal(network(network.module), before)


class Shared(nn.Module):
    """Gives pairs of tensors that are equal at every draw of the weights, and only if uses share it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.emb, self.out = nn.Linear(40, 3), nn.Embedding(6, 40), nn.Linear(40, 6, bias=False)
        self.out.weight = self.emb.weight
        self.alias = self.fc

    def forward(self, x: Tensor, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
        by_function = nn.functional.linear(x, self.fc.weight, self.fc.bias)
        return [
            (self.fc(x), self.fc(x)), (self.fc(x), self.alias(x)), (self.fc(x), by_function),
            (self.emb(tokens), self.out.weight[tokens]), (self.out(x), x @ self.emb.weight.T),
        ]  # fmt: skip


@families
@pytest.mark.parametrize("estimator", [br.Auto(), br.LocalReparam(), br.WeightSample()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("traceable", [True, False])
def test_all_uses_in_a_pass_share_one_draw(family: str, estimator: br.estimators.Estimator, traceable: bool) -> None:
    inputs = torch.randn(5, 40, dtype=torch.float64), torch.tensor([1, 1, 4])
    example = None if traceable else inputs
    bnn = br.bayesianize(Shared().double(), FAMILIES[family], estimator=estimator, example=example)
    for _ in range(2):
        for first, second in bnn(*inputs):
            torch.testing.assert_close(first, second, rtol=1e-14, atol=1e-14)
    assert bnn.conversion["fc.weight"].estimator == "WeightSample"
    assert bnn.conversion["fc.weight"].note == "used more than once in a pass"
    assert bnn.conversion["emb.weight"].note == "tied with out.weight"


class Projection(nn.Module):
    """Owns a weight of another layer, and is no layer itself."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


@pytest.mark.parametrize("layer_first", [True, False])
def test_a_weight_tied_to_a_module_that_is_no_layer(layer_first: bool) -> None:
    layer = nn.Linear(4, 4, bias=False)
    parts = layer, Projection(layer.weight)
    net = nn.Sequential(*parts if layer_first else parts[::-1]).double()
    bnn, x = br.bayesianize(net, br.KTied(2)), torch.randn(3, 4, dtype=torch.float64)
    assert list(bnn.homes()) == ["0.weight"]
    with bnn.draws.root():
        torch.testing.assert_close(bnn.module[0](x), bnn.module[1](x), rtol=1e-14, atol=1e-14)
    assert torch.equal(br.mean_module(bnn)(x), net(x))


def test_a_module_called_twice_cancels_exactly() -> None:
    class Cancels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(40, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) - self.fc(x)

    for estimator in (br.LocalReparam(), br.Flipout(), br.Auto(), br.WeightSample()):
        bnn = br.bayesianize(Cancels(), br.Diagonal(init_std=1.0), estimator=estimator)
        assert bnn(torch.randn(5, 40)).abs().max() == 0


def test_kl_counts_shared_weights_once() -> None:
    bnn = br.bayesianize(Shared().double(), br.Diagonal(init_std=0.3), br.Normal(0.7))
    assert set(bnn.homes()) == {"fc.weight", "fc.bias", "emb.weight"}
    prior = torch.distributions.Normal(0.0, torch.tensor(0.7, dtype=torch.float64))
    want = torch.zeros((), dtype=torch.float64)
    for home in bnn.homes().values():
        posterior = torch.distributions.Normal(home.posterior.mean, home.posterior.log_std.exp().reshape_as(home.mean))
        want += torch.distributions.kl_divergence(posterior, prior).sum()
    torch.testing.assert_close(br.kl(bnn), want, rtol=1e-12, atol=0)
