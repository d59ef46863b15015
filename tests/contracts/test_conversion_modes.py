"""The ways a step can be run: each gives the gradients of the plain step, at the same noise."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import networks
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

import bayesrule as br
from bayesrule.estimators import Estimator
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import Family

TOKENS = torch.tensor([[1, 5, 0], [2, 2, 4]])


class Regions(nn.Module):
    """Everything that makes recomputation hard: uses of one weight in and across regions, loops, dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.out = nn.Embedding(6, 4), nn.Linear(4, 6)
        self.out.weight = self.emb.weight
        self.lstm, self.cell = nn.LSTM(4, 4, batch_first=True), nn.GRUCell(4, 4)
        self.twice, self.wide, self.narrow = nn.Linear(4, 4), nn.Linear(4, 40), nn.Linear(40, 4)
        self.drop = nn.Dropout(0.3)
        self.region: Callable[..., Any] = _plainly

    def _encode(self, hidden: Tensor) -> Tensor:
        return self.drop(self.lstm(self.drop(hidden))[0])

    def _loop(self, hidden: Tensor) -> Tensor:
        state = hidden[:, 0]
        for step in hidden.unbind(1):
            state = self.cell(self.drop(step), state)
        return state

    def _mix(self, state: Tensor) -> Tensor:
        return self.drop(self.narrow(self.drop(self.wide(self.twice(state))))) + self.twice(state)

    def _decode(self, state: Tensor) -> Tensor:
        return self.out(self.drop(self.twice(state)))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.region(self._encode, self.emb(tokens))
        state = self.drop(self.region(self._loop, hidden))
        state = self.region(self._mix, state)
        return self.region(self._decode, self.twice(state) + self.emb(tokens[:, 0]))


def structure(option: object) -> str:
    return type(option).__name__


def _plainly(function: Callable[..., Tensor], *args: Tensor) -> Tensor:
    return function(*args)


def _checkpointed(reentrant: bool) -> Callable[..., Tensor]:
    return lambda function, *args: checkpoint(function, *args, use_reentrant=reentrant)


def _through(region: Callable[..., Tensor]) -> Callable[[BayesianModule, Tensor], Tensor]:
    """The whole model in one region; a differentiable input, as reentrant checkpoints need one."""
    touched = torch.zeros((), dtype=torch.float64, requires_grad=True)
    return lambda bnn, tokens: region(lambda nothing: bnn(tokens) + nothing, touched)


WAYS: dict[str, tuple[Callable[..., Any], Callable[[BayesianModule, Tensor], Tensor]]] = {
    "regions": (_checkpointed(False), lambda bnn, tokens: bnn(tokens)),
    "regions-reentrant": (_checkpointed(True), lambda bnn, tokens: bnn(tokens)),
    "whole": (_plainly, _through(_checkpointed(False))),
    "whole-reentrant": (_plainly, _through(_checkpointed(True))),
    "nested": (_checkpointed(False), _through(_checkpointed(False))),
}


def converted(estimator: Estimator, family: Family | None = None, *, traced: bool = True) -> BayesianModule:
    family = family or br.Diagonal(init_std=0.3)
    return br.bayesianize(Regions().double(), family, estimator=estimator, example=TOKENS if traced else None)


def step(bnn: BayesianModule, call: Callable[[BayesianModule, Tensor], Tensor]) -> list[Tensor]:
    """The gradients of two passes, both before one backward pass."""
    torch.manual_seed(3)
    sum(call(bnn, TOKENS).square().sum() for _ in range(2)).backward()
    found = gradients(bnn)
    bnn.zero_grad()
    return found


def gradients(module: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


def assert_close(got: list[Tensor], want: list[Tensor]) -> None:
    assert len(got) == len(want) > 0
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("estimator", "traced"), [(br.LocalReparam(), True), (br.WeightSample(), False)], ids=structure
)
def test_activation_checkpointing_recomputes_the_same_noise(way: str, estimator: Estimator, traced: bool) -> None:
    bnn = converted(estimator, traced=traced)
    want = step(bnn, lambda bnn, tokens: bnn(tokens))
    assert len(want) == len(list(bnn.parameters()))
    bnn.module.region, call = WAYS[way]
    assert_close(step(bnn, call), want)


@pytest.mark.parametrize("family", [br.KTied(2, 0.3), br.MatrixNormal(0.3)], ids=structure)
@pytest.mark.parametrize("way", ["regions", "regions-reentrant"])
def test_activation_checkpointing_of_structured_posteriors(way: str, family: Family) -> None:
    bnn = converted(br.Auto(), family)
    want = step(bnn, lambda bnn, tokens: bnn(tokens))
    bnn.module.region, call = WAYS[way]
    assert_close(step(bnn, call), want)


def test_a_checkpointed_layer_alone_recomputes_the_same_noise() -> None:
    bnn = converted(br.WeightSample())
    hidden = torch.randn(2, 3, 4, dtype=torch.float64)
    found = []
    for region in (_plainly, _checkpointed(False), _checkpointed(True)):
        torch.manual_seed(5)
        bnn.zero_grad()
        region(bnn.module._encode, hidden.clone().requires_grad_()).square().sum().backward()
        found.append(gradients(bnn))
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


def test_accumulated_gradients_are_the_sum() -> None:
    network = networks.network("two-names")
    bnn = br.bayesianize(network.module, br.Diagonal(init_std=0.3))

    def seeded(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return network(bnn)[0].square().mean()

    (seeded(1) + seeded(2)).backward()
    want = gradients(bnn)
    bnn.zero_grad()
    for seed in (1, 2):
        seeded(seed).backward()
    assert_close(gradients(bnn), want)


NETWORKS = ["mlp", "tied", "two-names", "conv2d", "encoder-layer", "lstm-cells"]


@pytest.mark.parametrize("name", NETWORKS)
def test_functional_gradients_are_those_of_the_plain_step(name: str) -> None:
    network = networks.network(name)
    bnn = br.bayesianize(network.module, br.KTied(2, init_std=0.3))
    torch.manual_seed(4)
    (network(bnn)[0].square().sum() + br.kl(bnn)).backward()
    want = gradients(bnn)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        with swapped(bnn, parameters):
            return network(bnn)[0].square().sum() + br.kl(bnn)

    torch.manual_seed(4)
    got = grad(loss)(dict(bnn.named_parameters()))
    assert_close(list(got.values()), want)


@contextmanager
def swapped(bnn: BayesianModule, parameters: dict[str, Tensor]) -> Iterator[None]:
    """The model at other parameters, for more than its forward pass."""
    with nn.utils.stateless._reparametrize_module(bnn, parameters, tie_weights=True):
        yield


def test_functional_call_takes_other_parameters() -> None:
    network = networks.network("tied")
    bnn = br.bayesianize(network.module, br.Diagonal(init_std=0.3))
    other = {name: value + 0.1 for name, value in bnn.named_parameters()}
    with torch.no_grad():
        torch.manual_seed(1)
        got = functional_call(bnn, other, network.args)
        bnn.load_state_dict(other, strict=False)
        torch.manual_seed(1)
        torch.testing.assert_close(got, bnn(*network.args), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mlp", "tied", "two-names", "conv2d"])
def test_vmap_with_different_randomness_draws_for_each(name: str) -> None:
    """Every one of the mapped passes has its own weights, shared by all uses in it."""
    network = networks.network(name)
    bnn = br.bayesianize(network.module, br.Diagonal(init_std=0.3))

    def once(_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with bnn.draws.root():
            name, home = next(iter(bnn.homes().items()))
            drawn = bnn.draws.tensor(home, name)
            return bnn.module(*network.args, **network.kwargs), drawn, bnn.draws.tensor(home, name)

    outputs, first, second = vmap(once, randomness="different")(torch.arange(3))
    assert torch.equal(first, second)
    for drawn in (outputs, first):
        assert not torch.equal(drawn[0], drawn[1])
        assert not torch.equal(drawn[1], drawn[2])
    mapped = vmap(lambda _: bnn(*network.args, **network.kwargs), randomness="different")(torch.arange(2))
    assert not torch.equal(mapped[0], mapped[1])


@pytest.mark.parametrize("family", [br.Diagonal(1e-4), br.KTied(2, 1e-4), br.MatrixNormal(1e-4)], ids=structure)
def test_half_precision_autocast_keeps_small_variances(family: Family) -> None:
    """Draws and KL are computed in the posterior's own precision; only the layer's product is in half."""
    bnn = br.bayesianize(nn.Linear(30, 20), family, estimator=br.WeightSample(), bias="point")
    torch.manual_seed(0)
    want, drawn = br.kl(bnn), bnn.module.weight
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.float16):
        assert br.kl(bnn) == want
        assert torch.equal(bnn.module.weight, drawn)
        assert bnn(torch.randn(4, 30)).dtype == torch.float16


@pytest.mark.parametrize("family", [br.Diagonal(1e-5), br.KTied(2, 1e-5), br.MatrixNormal(1e-5)], ids=structure)
def test_half_precision_autocast_keeps_small_local_noise(family: Family) -> None:
    """At zero means the outputs are the noise itself, of standard deviation 1e-5 ‖x‖, also for inputs beyond √65504."""
    net = nn.Linear(30, 20, bias=False)
    nn.init.zeros_(net.weight)
    bnn = br.bayesianize(net, family, estimator=br.LocalReparam())
    x = torch.full((4, 30), 400.0)
    torch.manual_seed(0)
    want = bnn(x)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.float16):
        got = bnn(x)
    assert want.std().item() == pytest.approx(1e-5 * 400 * 30**0.5, rel=0.5)
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=1e-4)


def test_scaled_gradients_are_those_of_the_plain_step() -> None:
    bnn = br.bayesianize(nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 1)), br.KTied(1))
    x = torch.randn(8, 30)

    def loss() -> Tensor:
        torch.manual_seed(0)
        return bnn(x).float().square().mean() + br.kl(bnn) / 1000

    loss().backward()
    want = gradients(bnn)
    bnn.zero_grad()
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=64.0), torch.optim.SGD(bnn.parameters(), lr=0.1)
    with torch.autocast("cpu", dtype=torch.float16):
        scaled = loss()
    scaler.scale(scaled).backward()
    scaler.unscale_(optimizer)
    for got, expected in zip(gradients(bnn), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-4)
    before = [parameter.clone() for parameter in bnn.parameters()]
    scaler.step(optimizer)
    assert all(not torch.equal(a, b) for a, b in zip(before, bnn.parameters(), strict=True))


def run_compiled(backend: str, *names: str) -> str:
    script = Path(__file__).with_name("compiled_step.py")
    done = subprocess.run(
        [sys.executable, str(script), backend, *names], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_compiled_steps_give_the_gradients_of_the_plain_step() -> None:
    assert run_compiled("aot_eager", "mlp", "two-names") == "mlp: 1 graph\ntwo-names: 1 graph\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["conv2d", "tied", "encoder-layer", "nested"])
def test_compiled_steps_of_other_networks(name: str) -> None:
    assert run_compiled("aot_eager", name) == f"{name}: 1 graph\n"


@pytest.mark.slow
def test_a_step_compiled_to_machine_code() -> None:
    assert run_compiled("inductor", "mlp") == "mlp: 1 graph\n"
