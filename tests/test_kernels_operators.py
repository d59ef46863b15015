"""The operators behind the fused layer: torch's own checks on a CPU, Triton kernels on a GPU, against float64."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.kernels import sum_log_product
from bayesrule.kernels.ktied_linear import ktied_linear_reference
from bayesrule.kernels.operators import HAS_TRITON, fresh_noise_seed, ktied_linear_seeded, seeded_normals
from bayesrule.kernels.pairs import pair_products
from bayesrule.random import Replay
from bayesrule.recording import recording

SIZES = [(1, 1, 1, 1), (37, 45, 300, 2), (70, 130, 65, 3), (3, 200, 17, 5), (257, 64, 513, 2), (1000, 784, 400, 2)]
"""Rows, fan-in, fan-out and rank: odd ones, smaller and larger than the kernels' blocks."""
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")


def inputs_of(size: tuple[int, int, int, int], device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    rows, fan_in, fan_out, rank = size
    x, weight = torch.randn(rows, fan_in), torch.randn(fan_out, fan_in) / fan_in**0.5
    x[1:2] = 0  # no variance at all, where there is a second row
    factors = torch.rand(fan_in, rank) + 0.1, torch.rand(fan_out, rank) + 0.1
    tensors = x.to(dtype), weight.to(dtype), *factors
    return [tensor.to(device).requires_grad_() for tensor in tensors]


def pairs_of(inputs: list[Tensor]) -> list[Tensor]:
    pairs = pair_products(inputs[2], 1.0), pair_products(inputs[3], 2.0)
    return [columns.mT.detach().contiguous().requires_grad_() for columns in pairs]


def exact(inputs: list[Tensor], seed: Tensor, cotangent: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The layer and its gradients in float64, at the noise of the seed."""
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    noise = seeded_normals(seed, len(inputs[0]), len(inputs[1]), torch.float64)
    output = ktied_linear_reference(*wide, noise)
    # Variances of zero have no gradient, in either precision, only below the smallest number of float32.
    return output, list(torch.autograd.grad(output, wide, cotangent.double()))


def assert_relative(got: Tensor, want: Tensor, tolerance: float) -> None:
    """To a tolerance relative to the largest entry."""
    assert (got.double() - want).abs().max() <= tolerance * want.abs().max().clamp_min(1e-30)


def test_operators_pass_the_checks_of_torch() -> None:
    inputs = inputs_of((7, 5, 9, 2), "cpu")
    seed = fresh_noise_seed(torch.device("cpu"))
    pairs = pairs_of(inputs)
    torch.library.opcheck(torch.ops.bayesrule.ktied_linear, (*inputs[:2], *pairs, seed))
    torch.library.opcheck(torch.ops.bayesrule.sum_log, (inputs[2].detach(), inputs[3].detach()))
    torch.library.opcheck(torch.ops.bayesrule.seeded_normals, (seed, 4, 3))
    free = [tensor.detach() for tensor in (*inputs[:2], *pairs)]
    output, narrow = torch.ops.bayesrule.ktied_linear(*free, seed)
    arguments = output, *free[:2], narrow, *free[2:], seed
    for flags in ((True, True), (False, True), (True, False)):
        torch.library.opcheck(torch.ops.bayesrule.ktied_linear_backward, (*arguments, *flags))


@pytest.mark.parametrize("size", SIZES[:5])
def test_the_plain_operators_equal_the_formula(size: tuple[int, int, int, int]) -> None:
    inputs, seed = inputs_of(size, "cpu", torch.float64), torch.tensor([11])
    inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]
    output = ktied_linear_seeded(*inputs, seed)
    cotangent = torch.randn_like(output)
    want, slopes = exact(inputs, seed, cotangent)
    torch.testing.assert_close(output, want, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(output, inputs, cotangent), slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_second_derivatives_of_the_operator() -> None:
    inputs = [tensor.detach().double().requires_grad_() for tensor in inputs_of((3, 4, 5, 2), "cpu")]
    seed = torch.tensor([11])
    inputs[0] = inputs[0].detach().add(0.5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda *free: ktied_linear_seeded(*free, seed), inputs)


def test_a_compiler_sees_one_operator() -> None:
    inputs, seed = inputs_of((7, 5, 9, 2), "cpu"), torch.tensor([11])

    def loss(*free: Tensor) -> Tensor:
        return ktied_linear_seeded(*free, seed).square().sum()

    got = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*inputs), inputs)
    for mine, theirs in zip(got, torch.autograd.grad(loss(*inputs), inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("size", SIZES)
def test_the_kernels_equal_float64(size: tuple[int, int, int, int]) -> None:
    assert_equal_to_float64(inputs_of(size, "cuda"), 1e-5, 2e-5)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", SIZES[1:])
def test_the_kernels_in_half_precision(size: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    assert_equal_to_float64(inputs_of(size, "cuda", dtype), 2e-2, 2e-2)


def assert_equal_to_float64(inputs: list[Tensor], of_output: float, of_gradients: float) -> None:
    seed = fresh_noise_seed(torch.device("cuda"))
    output = ktied_linear_seeded(*inputs, seed)
    cotangent = torch.randn_like(output)
    want, slopes = exact(inputs, seed, cotangent)
    assert_relative(output, want, of_output)
    for mine, theirs in zip(torch.autograd.grad(output, inputs, cotangent), slopes, strict=True):
        assert_relative(mine, theirs, of_gradients)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("size", [(1, 1, 1), (37, 21, 2), (16, 130, 1), (5, 7, 3), (1000, 333, 2), (4096, 4096, 2)])
def test_the_kernel_of_logarithms_equals_float64(size: tuple[int, int, int]) -> None:
    fan_in, fan_out, rank = size
    factors = [(torch.rand(n, rank, device="cuda") + 0.1).requires_grad_() for n in (fan_in, fan_out)]
    wide = [factor.detach().double().requires_grad_() for factor in factors]
    got, want = sum_log_product(*factors), (wide[0] @ wide[1].T).log().sum()
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)
    slopes = torch.autograd.grad(want, wide)
    for mine, theirs in zip(torch.autograd.grad(got, factors), slopes, strict=True):
        assert_relative(mine, theirs, 1e-5)


@pytest.mark.gpu
@needs_triton
def test_the_noise_of_the_kernel_is_standard_normal() -> None:
    """Moments, and correlations between strips, rows and seeds, within 5.5 deviations: a failure rate below 1e-6."""
    rows, columns = 1024, 4096
    first, second = (seeded_normals(torch.tensor([s], device="cuda"), rows, columns, torch.float64) for s in (1, 2))
    count = first.numel()
    expected = {1: (0.0, 1.0), 2: (1.0, 2.0), 3: (0.0, 15.0), 4: (3.0, 96.0)}
    for power, (mean, variance) in expected.items():
        assert abs(first.pow(power).mean() - mean) < 5.5 * (variance / count) ** 0.5
    shifted = first.roll(64, 1), first.roll(1, 1), first.roll(1, 0), second
    for other in shifted:
        assert abs((first * other).mean()) < 5.5 / count**0.5
    again = seeded_normals(torch.tensor([1], device="cuda"), rows, columns, torch.float64)
    assert torch.equal(first, again)
    assert first.abs().max() > 4.5  # the tail is there


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("autocast", [False, True])
def test_a_step_by_kernels_equals_a_step_by_plain_operations(monkeypatch: pytest.MonkeyPatch, autocast: bool) -> None:
    net = nn.Sequential(nn.Linear(65, 130), nn.Tanh(), nn.Linear(130, 10))
    bnn = br.bayesianize(net, br.KTied(2, init_std=1e-7), br.Normal(0.5), br.LocalReparam(), bias="point").cuda()
    x = torch.randn(33, 65, device="cuda")

    def gradients() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = bnn(x).float().square().mean() + br.kl(bnn) / 100
        return list(torch.autograd.grad(loss, list(bnn.parameters())))

    got = gradients()  # the noise is too small to be seen, but in the gradients of the KL
    monkeypatch.setattr("bayesrule.kernels.operators.HAS_TRITON", False)
    for mine, theirs in zip(got, gradients(), strict=True):
        assert_relative(mine, theirs.double(), 3e-2 if autocast else 1e-4)


@pytest.mark.gpu
@needs_triton
def test_graphs_draw_new_noise_and_replay_by_seed() -> None:
    bnn = br.bayesianize(nn.Linear(64, 32), br.KTied(2, init_std=0.1), br.Normal(0.5), br.LocalReparam()).cuda()
    x = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            bnn(x)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with recording(graph):
            output = bnn(x)
    runs = []
    for _ in range(2):
        torch.cuda.manual_seed(7)
        draws = []
        for _ in range(3):
            graph.replay()
            draws.append(output.clone())
        runs.append(torch.stack(draws))
    assert torch.equal(*runs)
    assert not torch.equal(runs[0][0], runs[0][1])


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers on a CPU take the way of a GPU, to the operators; these are plain operations here."""
    monkeypatch.setattr("bayesrule.kernels.ktied_layer.ordinary_on_cpu", lambda *_: False)
    monkeypatch.setattr("bayesrule.kernels.ktied_layer.has_kernels", lambda _: True)


def step_of(bnn: nn.Module, x: Tensor, autocast: bool = False) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = bnn(x)
    loss = output.float().square().mean() + br.kl(bnn) / 100
    return output, list(torch.autograd.grad(loss, list(bnn.parameters())))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_layer_on_a_gpu_takes_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = nn.Linear(9, 12, bias=False)
    bnn, x = br.bayesianize(linear, br.KTied(2, 0.3), br.Normal(0.5), br.LocalReparam()), torch.randn(2, 3, 9)
    output, got = step_of(bnn, x)
    torch.manual_seed(3)
    noise = seeded_normals(fresh_noise_seed(x.device), 6, 12, torch.float32)
    monkeypatch.undo()
    bnn.draws.noise = Replay([noise.reshape(2, 3, 12)])
    want, slopes = step_of(bnn, x)
    torch.testing.assert_close(output, want)
    for mine, theirs in zip(got, slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


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
from bayesrule.kernels import ktied_layer

ktied_layer.ordinary_on_cpu, ktied_layer.has_kernels = (lambda *_: False), (lambda _: True)
net = nn.Sequential(nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 3))
bnn, x = br.bayesianize(net, br.KTied(2, 0.3), br.Normal(0.5), br.LocalReparam()), torch.randn(6, 9)
targets = []


def backend(graph, _):
    targets.extend(str(node.target) for node in graph.graph.nodes)
    return graph


(torch.compile(lambda: bnn(x).sum() + br.kl(bnn), backend=backend, fullgraph=True)()).backward()
assert sum("ktied_linear" in target for target in targets) == 2, targets
assert all(parameter.grad is not None for parameter in bnn.parameters())
"""


def test_a_compiled_layer_on_a_gpu_takes_the_operator() -> None:
    """In a process of its own: checks of shapes around every function, as in this one, cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
