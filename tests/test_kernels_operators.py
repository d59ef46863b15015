"""The operators behind the fused layer: torch's own checks on a CPU, Triton kernels on a GPU, against float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.kernels import sum_log_product
from bayesrule.kernels.divergence_operators import as_tensors, diagonal_number_and_slopes, ktied_number_and_slopes
from bayesrule.kernels.ktied_linear import ktied_linear_reference
from bayesrule.kernels.linear_operator import bias_noise, ktied_linear_seeded
from bayesrule.kernels.operators import HAS_TRITON, fresh_noise_seed, seeded_normals
from bayesrule.kernels.sums import cast_with_squares
from kernel_checks import assert_graphs_draw_anew_and_replay_by_seed, assert_relative

SIZES = [(1, 1, 1, 1), (37, 45, 300, 2), (70, 130, 65, 3), (3, 200, 17, 5), (257, 64, 513, 2), (1000, 784, 400, 2)]
"""Rows, fan-in, fan-out and rank: odd ones, smaller and larger than the kernels' blocks."""
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")


def inputs_of(size: tuple[int, int, int, int], device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Inputs, weight, the logarithms of both factors, the bias and the logarithms of its standard deviations."""
    rows, fan_in, fan_out, rank = size
    x, weight = torch.randn(rows, fan_in), torch.randn(fan_out, fan_in) / fan_in**0.5
    x[1:2] = 0  # no variance at all, where there is a second row
    logs = (torch.rand(fan_in, rank) + 0.1).log(), (torch.rand(fan_out, rank) + 0.1).log()
    tensors = x.to(dtype), weight.to(dtype), *logs, torch.randn(fan_out), torch.randn(fan_out)
    return [tensor.to(device).requires_grad_() for tensor in tensors]


def seeded(inputs: Sequence[Tensor], seed: Tensor) -> Tensor:
    return ktied_linear_seeded(*inputs[:4], seed, (inputs[4], inputs[5]))


def exact(inputs: list[Tensor], seed: Tensor, cotangent: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The layer and its gradients in float64, at the noise of the seed."""
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    rows, columns = len(inputs[0]), len(inputs[1])
    noise = seeded_normals(seed, rows, columns, torch.float64)
    output = ktied_linear_reference(*wide[:4], noise)
    if len(wide) > 4:
        output = output + wide[4]
    if len(wide) > 5:
        output = output + wide[5].exp() * bias_noise(seed, rows, columns, torch.float64)
    # Variances of zero have no gradient, in either precision, only below the smallest number of float32.
    return output, list(torch.autograd.grad(output, wide, cotangent.double()))


def test_operators_pass_the_checks_of_torch() -> None:
    inputs = inputs_of((7, 5, 9, 2), "cpu")
    seed = fresh_noise_seed(torch.device("cpu"))
    free = [tensor.detach() for tensor in inputs]
    for bias in (inputs[4:], (inputs[4], None), (None, None)):
        torch.library.opcheck(torch.ops.bayesrule.ktied_linear, (*inputs[:4], *bias, seed))
    torch.library.opcheck(torch.ops.bayesrule.sum_log, (free[2].exp(), free[3].exp()))
    for mean in (None, free[1]):
        torch.library.opcheck(torch.ops.bayesrule.ktied_divergence, (*free[2:4], mean, False, 0.7, 0.3))
    torch.library.opcheck(torch.ops.bayesrule.diagonal_divergence, (*free[4:], 0.2, 0.7, 0.3))
    torch.library.opcheck(torch.ops.bayesrule.seeded_normals, (seed, 4, 3))
    output, *kept = torch.ops.bayesrule.ktied_linear(*free, seed)
    arguments = output, *free[:2], *kept, seed, 2
    for flags in ((True, True, True), (False, True, True), (True, False, True)):
        torch.library.opcheck(torch.ops.bayesrule.ktied_linear_backward, (*arguments, *flags))


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_operator_of_a_tied_kl_has_its_derivatives_and_maps(rank: int, squared: bool) -> None:
    """As a compiler sees it; 130 × 90 entries of rank 2 are summed by nodes."""
    shapes = (3, 130, rank), (3, 90, rank), (3, 7)
    logs = [(torch.rand(shape, dtype=torch.float64) + 0.1).log().requires_grad_() for shape in shapes[:2]]
    mean = torch.randn(shapes[2], dtype=torch.float64).requires_grad_()

    def by_operator(u: Tensor, v: Tensor, mean: Tensor) -> Tensor:
        return torch.ops.bayesrule.ktied_divergence(u, v, mean, squared, 0.7, 0.3)[0]

    def plain(u: Tensor, v: Tensor, mean: Tensor) -> Tensor:
        std = u.exp() @ v.exp().mT
        pull = mean.sum() if squared else mean.square().sum()
        return (0.35 * std.square() - std.log() + 0.3).sum() + 0.35 * pull

    got, want = (torch.vmap(function)(*logs, mean) for function in (by_operator, plain))
    torch.testing.assert_close(got, want, rtol=1e-11, atol=0)
    one = [tensor[0].detach().requires_grad_() for tensor in (*logs, mean)]
    slopes = (torch.autograd.grad(3 * function(*one), one) for function in (by_operator, plain))
    for mine, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("biased", [4, 5, 6], ids=["no bias", "a bias", "a random bias"])
@pytest.mark.parametrize("size", SIZES[:5])
def test_the_plain_operators_equal_the_formula(size: tuple[int, int, int, int], biased: int) -> None:
    inputs = [tensor.detach().double().requires_grad_() for tensor in inputs_of(size, "cpu")[:biased]]
    seed = torch.tensor([11])
    output = ktied_linear_seeded(*inputs[:4], seed, (*inputs[4:], None)[:2] if biased > 4 else None)
    cotangent = torch.randn_like(output)
    want, slopes = exact(inputs, seed, cotangent)
    torch.testing.assert_close(output, want, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(torch.autograd.grad(output, inputs, cotangent), slopes, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def test_second_derivatives_of_the_operator() -> None:
    inputs = [tensor.detach().double().requires_grad_() for tensor in inputs_of((3, 4, 5, 2), "cpu")]
    seed = torch.tensor([11])
    inputs[0] = inputs[0].detach().add(0.5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda *free: seeded(free, seed), inputs)


def test_a_compiler_sees_one_operator() -> None:
    inputs, seed = inputs_of((7, 5, 9, 2), "cpu"), torch.tensor([11])

    def loss(*free: Tensor) -> Tensor:
        return seeded(free, seed).square().sum()

    got = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*inputs), inputs)
    for mine, theirs in zip(got, torch.autograd.grad(loss(*inputs), inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("shared", [False, True])
def test_logarithms_of_many_factors(shared: bool) -> None:
    left, right = torch.rand(6, 3, 2) + 0.1, torch.rand(5, 2) + 0.1 if shared else torch.rand(5, 3, 2) + 0.1
    dims = (1, None if shared else 1)
    got = torch.vmap(torch.ops.bayesrule.sum_log, dims)(left, right)
    each = [torch.ops.bayesrule.sum_log(left[:, i], right if shared else right[:, i]) for i in range(3)]
    for mine, theirs in zip(got, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(theirs), rtol=0, atol=0)


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
    output = seeded(inputs, seed)
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
@pytest.mark.parametrize("size", [(1, 1, 1), (37, 21, 2), (16, 130, 3), (1000, 333, 2), (4096, 4096, 2)])
def test_the_kernels_of_kls_equal_float64(size: tuple[int, int, int]) -> None:
    fan_in, fan_out, rank = size
    logs = [torch.randn(n, rank, device="cuda").mul(0.3).requires_grad_() for n in (fan_in, fan_out)]
    mean = torch.randn(fan_out, fan_in, device="cuda")
    wide = [tensor.double() for tensor in (*logs, mean)]
    assert torch.equal(cast_with_squares(mean, torch.bfloat16)[0], mean.bfloat16())
    want = as_tensors(ktied_number_and_slopes(*wide, False, 0.7, 0.3))
    for squared in (False, True):
        summed = cast_with_squares(mean, torch.bfloat16)[1] if squared else mean
        got = torch.ops.bayesrule.ktied_divergence(*logs, summed, squared, 0.7, 0.3)
        for mine, theirs in zip(got, want, strict=True):
            assert_relative(mine, theirs, 1e-5)
    vectors = logs[0][:, 0].contiguous(), logs[0][:, -1].contiguous()
    got = torch.ops.bayesrule.diagonal_divergence(*vectors, 0.2, 0.7, 0.3)
    want = as_tensors(diagonal_number_and_slopes(*(vector.double() for vector in vectors), 0.2, 0.7, 0.3))
    for mine, theirs in zip(got, want, strict=True):
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
    shifted = first.roll(16, 0), first.roll(1, 1), first.roll(1, 0), second
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
    assert_graphs_draw_anew_and_replay_by_seed(bnn)
