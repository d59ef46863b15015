"""A step of a k-tied network as a GPU runs it: by operators, few of them, which keep no more than the plain network.

The operators are plain operations on a CPU, where these tests run; Triton kernels stand in for them on a GPU.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

import bayesrule as br
from bayesrule.kernels.linear_operator import bias_noise
from bayesrule.kernels.operators import fresh_noise_seed, seeded_normals
from bayesrule.kernels.sums import add_multiples
from bayesrule.priors import kl_divergence
from bayesrule.random import Replay
from kernel_checks import assert_relative

VIEWS = {"t", "detach", "view", "transpose", "_unsafe_view", "expand", "alias", "select", "unbind", "unsqueeze"}
ROOM = {"empty", "new_empty", "empty_like"}
READ = {"_local_scalar_dense"}  # only on a CPU: a GPU's kernels read such numbers themselves


class Launches(TorchDispatchMode):
    """Counts operators that compute something: on a GPU each is one kernel or, of our own, a few."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name not in VIEWS | ROOM | READ:
            self.calls[name] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers on a CPU take the way of a GPU, to the operators; these are plain operations here."""
    monkeypatch.setattr("bayesrule.kernels.ktied_layer.ordinary_on_cpu", lambda *_: False)
    monkeypatch.setattr("bayesrule.kernels.tap.FEWEST_ENTRIES", 0)
    for module in ("seeded", "divergence"):
        monkeypatch.setattr(f"bayesrule.kernels.{module}.has_kernels", lambda _: True)


def step_of(bnn: nn.Module, x: Tensor, autocast: bool = False) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = bnn(x)
    loss = output.float().square().mean() + br.kl(bnn) / 100
    return output, list(torch.autograd.grad(loss, list(bnn.parameters())))


def assert_same_step(got: tuple[Tensor, list[Tensor]], want: tuple[Tensor, list[Tensor]]) -> None:
    torch.testing.assert_close(got[0], want[0])
    for mine, theirs in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_layer_on_a_gpu_takes_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(9, 12, bias=False)
    bnn, x = br.bayesianize(linear, br.KTied(2, 0.3), br.Normal(0.5), br.LocalReparam()), torch.randn(2, 3, 9)
    output, got = step_of(bnn, x)
    torch.manual_seed(3)
    noise = seeded_normals(fresh_noise_seed(x.device), 6, 12, torch.float32)
    monkeypatch.undo()
    bnn.draws.noise = Replay([noise.reshape(2, 3, 12)])
    assert_same_step((output, got), step_of(bnn, x))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_half_precision_meets_the_kl_in_one_gradient() -> None:
    linear = nn.Linear(9, 12, bias=False)
    bnn, x = br.bayesianize(linear, br.KTied(2, 0.3), br.Normal(0.5), br.LocalReparam()), torch.randn(6, 9)
    rough, got = step_of(bnn, x, autocast=True)
    fine, want = step_of(bnn, x)
    assert rough.dtype == torch.bfloat16
    assert all(gradient.dtype == torch.float32 for gradient in got)
    torch.testing.assert_close(rough.float(), fine, rtol=0.02, atol=0.05)
    for mine, theirs in zip(got, want, strict=True):
        assert_relative(mine, theirs.double(), 0.03)


COMPILED = """
import torch
from torch import nn

import bayesrule as br
from bayesrule.kernels import ktied_layer, seeded

ktied_layer.ordinary_on_cpu, seeded.has_kernels = (lambda *_: False), (lambda _: True)
net = nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 3))
bnn = br.bayesianize(net, br.KTied(2, 0.3), br.Normal(0.5), br.LocalReparam())


def operators(dynamic):
    x, targets = torch.randn(6, 9), []
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)  # an error where the number of rows becomes part of the program

    def backend(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    bnn.zero_grad()
    torch.compile(lambda x: bnn(x).sum() + br.kl(bnn), backend=backend, fullgraph=True)(x).backward()
    assert all(parameter.grad is not None for parameter in bnn.parameters())
    return sum("ktied_linear" in target for target in targets)


assert operators(False) == operators(True) == 2
"""


def test_a_compiler_on_a_gpu_takes_the_operators() -> None:
    """In a process of its own: checks of shapes around every function, as in this one, cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def layers(depth: int, bias: bool, width: int = 12) -> nn.Module:
    modules = [module for _ in range(depth) for module in (nn.Linear(width, width, bias=bias), nn.ReLU())]
    return nn.Sequential(*modules)


def launches(net: nn.Module, autocast: bool) -> Counter[str]:
    """Of forward, KL and backward."""
    x = torch.randn(6, 12)
    counted = Launches()
    with counted:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = net(x).sum()
        if isinstance(net, br.nn.BayesianModule):
            loss = loss + br.kl(net)
        loss.backward()
    return counted.calls


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    ("bias", "autocast", "most"), [(False, False, 4), (False, True, 3), (True, False, 6), (True, True, 3)]
)
def test_operators_of_a_layer_beside_those_of_the_point_estimate(bias: bool, autocast: bool, most: int) -> None:
    """Forward, KL and backward of one more layer: what a deeper network has more than a shallower one."""
    extra = []
    for bayesian in (False, True):
        counts = []
        for depth in (2, 3):
            net = layers(depth, bias)
            if bayesian:
                net = br.bayesianize(net, br.KTied(2), br.Normal(0.2), br.LocalReparam())
            counts.append(launches(net, autocast))
        extra.append(counts[1] - counts[0])
    point, tied = extra
    assert tied.total() - point.total() <= most, (point, tied)
    assert tied["ktied_linear"] == tied["ktied_linear_backward"] == tied["ktied_divergence"] == 1


def kept_bytes(net: nn.Module, x: Tensor) -> int:
    """For the backward pass, each piece of memory once, parameters apart."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}

    def note(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    with saved_tensors_hooks(note, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
        loss = net(x).float().square().mean()
    loss.backward()
    return sum(kept.values())


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_forward_pass_keeps_what_the_point_estimate_keeps() -> None:
    """In half precision: activations and weights; besides, three narrow columns and a few vectors."""
    width, rows = 256, 512
    net, x = layers(3, True, width), torch.randn(rows, width)
    bnn = br.bayesianize(net, br.KTied(2), br.Normal(0.2), br.LocalReparam())
    narrow = 3 * 4 * (3 * rows + 16 * width)
    assert kept_bytes(bnn, x) <= kept_bytes(net, x) + narrow


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("bias", ["diagonal", "point"])
def test_a_layer_adds_its_bias_in_the_operator(monkeypatch: pytest.MonkeyPatch, bias: str) -> None:
    bnn = br.bayesianize(nn.Linear(9, 12), br.KTied(2, 0.3), br.Normal(0.5), br.LocalReparam(), bias=bias)
    x = torch.randn(6, 9)
    output, got = step_of(bnn, x)
    torch.manual_seed(3)
    seed = fresh_noise_seed(x.device)
    noises = [seeded_normals(seed, 6, 12, torch.float32), bias_noise(seed, 6, 12, torch.float32)]
    monkeypatch.undo()
    bnn.draws.noise = Replay(noises)
    assert_same_step((output, got), step_of(bnn, x))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_bias_drawn_in_the_operator_is_that_of_the_pass_no_more() -> None:
    bnn = br.bayesianize(nn.Linear(9, 12), br.KTied(2), br.Normal(0.5), br.LocalReparam())
    with bnn.draws.root():
        bnn(torch.randn(6, 9))
        with pytest.warns(UserWarning, match="bias was used twice in one forward pass"):
            _ = bnn.module.bias


@pytest.mark.parametrize("squared", [False, True])
def test_the_kl_of_a_mean_whose_squares_were_summed_before(squared: bool) -> None:
    logs = [torch.randn(n, 2, dtype=torch.float64).requires_grad_() for n in (5, 7)]
    mean = torch.randn(7, 5, dtype=torch.float64)
    std = logs[0].exp() @ logs[1].exp().T
    want = (0.35 * std.square() - std.log() + 0.3).sum() + 0.35 * mean.square().sum()
    free = [log.detach() for log in logs]
    value, *slopes = torch.ops.bayesrule.ktied_divergence(
        *free, mean.square().sum(1) if squared else mean, squared, 0.7, 0.3
    )
    torch.testing.assert_close(value, want.detach(), rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(slopes, torch.autograd.grad(want, logs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("half", [False, True])
def test_multiples_are_added_to_what_is_there(half: bool) -> None:
    tensors = [torch.randn(n, 3, dtype=torch.float64) for n in (4, 2, 5)]
    starts = [torch.randn(4, 3, dtype=torch.bfloat16 if half else torch.float64), None, torch.randn(5, 3).double()]
    want = [
        by * 0.25 * tensor + (0 if start is None else start)
        for start, tensor, by in zip(starts, tensors, (2.0, 3.0, 1.0), strict=True)
    ]
    got = add_multiples(starts, list(zip(tensors, (2.0, 3.0, 1.0), strict=True)), torch.tensor(0.25).double())
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float64
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_two_kls_of_different_priors_and_a_layer_share_no_slopes() -> None:
    bnn = br.bayesianize(nn.Linear(5, 4).double(), br.KTied(2), br.Normal(0.5), br.LocalReparam())
    x, parameters = torch.randn(3, 5, dtype=torch.float64), list(bnn.parameters())

    def gradients(*parts: str) -> list[Tensor]:
        torch.manual_seed(3)
        posteriors = bnn.homes()
        values = {
            "loss": lambda: bnn(x).square().mean(),
            "wide": lambda: sum(kl_divergence(home(), br.Normal(2.0)) for home in posteriors.values()),
            "narrow": lambda: sum(kl_divergence(home(), br.Normal(0.1)) for home in posteriors.values()),
        }
        return list(torch.autograd.grad(sum(values[part]() for part in parts), parameters))

    together = gradients("wide", "loss", "narrow")
    apart = [sum(each) for each in zip(*(gradients(part) for part in ("loss", "wide", "narrow")), strict=True)]
    for mine, theirs in zip(together, apart, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)
