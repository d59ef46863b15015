"""The compiled library of a CPU against plain operations in float64, on fresh sizes and at the edges of its range."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bayesrule.kernels import ParameterTap, StoredParameters, diagonal_divergence, ktied_divergence, ktied_weight
from bayesrule.kernels.divergence_operators import diagonal_number_and_slopes, ktied_number_and_slopes
from bayesrule.kernels.ktied_linear import ktied_linear, ktied_linear_reference
from bayesrule.kernels.native import diagonal, is_there, ktied, serves
from kernel_checks import assert_relative, slopes
from largest_tensor import LargestTensor

pytestmark = pytest.mark.skipif(not is_there(), reason="needs a C compiler")

SIZES = [(1, 1, 1, 1), (5, 7, 3, 1), (4, 300, 9, 2), (33, 17, 16, 2), (11, 13, 6, 3), (2, 15, 40, 4), (3, 8, 8, 5),
         (130, 50, 257, 2)]  # fmt: skip
"""Rows, fan-in, fan-out and rank: less, as much and more than there are lanes; more rows than products are taken of."""
TOLERANCE = 3e-6
"""Of single precision, relative to the largest entry, where a few hundred numbers are added up."""


def single(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Numbers that float32 holds, in its precision."""
    generator = torch.Generator().manual_seed(math.prod(shape) + 7 * seed)
    return (torch.randn(shape, generator=generator) * scale).requires_grad_()


def double(tensors: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(
        None if each is None else each.detach().double().requires_grad_(each.requires_grad) for each in tensors
    )


def layer_inputs(rows: int, fan_in: int, fan_out: int, rank: int, bias: str) -> tuple[Tensor | None, ...]:
    """The input, M, log U and log V, without noise; and a bias."""
    factors = single(fan_in, rank, seed=1, scale=0.5), single(fan_out, rank, seed=2, scale=0.5)
    of_bias: tuple[Tensor | None, ...] = (None, None, None)
    if bias != "none":
        of_bias = single(fan_out, seed=4), None, None
    if bias == "random":
        of_bias = of_bias[0], single(fan_out, seed=5), single(fan_out, seed=6).detach()
    return single(rows, fan_in), single(fan_out, fan_in, seed=3), *factors, *of_bias


def assert_same_as_in_float64(
    function: Callable[..., Tensor], reference: Callable[..., Tensor], inputs: tuple[Tensor | None, ...]
) -> None:
    wide = double(inputs)
    got, want = function(*inputs), reference(*wide)
    assert got.dtype == torch.float32
    assert_relative(got, want, TOLERANCE)
    free, wide_free = ([t for t in each if t is not None and t.requires_grad] for each in (inputs, wide))
    for mine, theirs in zip(slopes(got, free), slopes(want, wide_free), strict=True):
        assert_relative(mine, theirs, TOLERANCE)


@pytest.mark.parametrize("bias", ["none", "plain", "random"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_local_noise(size: tuple[int, int, int, int], bias: str) -> None:
    x, weight, *logs = layer_inputs(*size, bias)
    noise = single(size[0], size[2], seed=8).detach()
    inputs = x, weight, *logs[:2], noise, *logs[2:]
    assert ktied.adds_noise(x, *logs[:2], noise)
    assert_same_as_in_float64(ktied_linear, ktied_linear_reference, inputs)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_drawn_weight(size: tuple[int, int, int, int]) -> None:
    _, fan_in, fan_out, _ = size
    _, mean, fan_in_logs, fan_out_logs, *_ = layer_inputs(*size, "none")
    noise = single(fan_out, fan_in, seed=8).detach()

    def compiled(*parameters: Tensor) -> Tensor:
        drawn = ktied_weight(StoredParameters(parameters, ParameterTap()), noise.mT)
        assert drawn is not None
        return drawn

    def plain(mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor) -> Tensor:
        return mean.mT + fan_in_logs.exp() @ fan_out_logs.exp().mT * noise.double().mT

    assert ktied.draws(mean, fan_in_logs, fan_out_logs, noise)
    assert_same_as_in_float64(compiled, plain, (mean, fan_in_logs, fan_out_logs))


def exact_divergence(fan_in_logs: Tensor, fan_out_logs: Tensor, precision: float) -> Tensor:
    std = fan_in_logs.exp() @ fan_out_logs.exp().mT
    return (0.5 * (precision * std.square() - 1 - math.log(precision)) - std.log()).sum()


@pytest.mark.parametrize("shift", [0.0, -30.0, 15.0], ids=lambda shift: f"e^{shift}")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_kls_of_k_tied_matrices(size: tuple[int, int, int, int], shift: float) -> None:
    """Standard deviations from 1e-13 to a million: their products leave single precision's range many times."""
    _, fan_in, fan_out, rank = size
    logs = single(fan_in, rank, seed=1), single(fan_out, rank, seed=2)
    inputs = (logs[0] + shift).detach().requires_grad_(), logs[1]
    assert ktied.divergence(*inputs, None, 0.7) is not None
    assert_same_as_in_float64(
        lambda u, v: ktied_divergence(u, v, 0.7), lambda u, v: exact_divergence(u, v, 0.7), inputs
    )


@pytest.mark.parametrize(
    ("logs", "expected"),
    [((-60.0, -60.0), math.inf), ((30.0, 40.0), math.inf), ((math.nan, 0.0), math.nan), ((-math.inf, 0.0), math.inf)],
    ids=str,
)
def test_what_leaves_the_range_is_left_to_plain_operations(logs: tuple[float, float], expected: float) -> None:
    """Standard deviations that are zero or infinite in single precision, or no numbers."""
    fan_in, fan_out = torch.full((3, 2), logs[0]), torch.full((4, 2), logs[1])
    assert ktied.divergence(fan_in, fan_out, None, 1.0) is None
    assert ktied_number_and_slopes(fan_in, fan_out, None, False, 1.0, 0.0)[0] == pytest.approx(expected, nan_ok=True)


def test_the_mean_counts_in_the_kl() -> None:
    mean, *logs = single(40, 30), single(30, 2, seed=1), single(40, 2, seed=2)
    with_mean, *_ = ktied_number_and_slopes(*logs, mean, False, 0.7, 0.3)
    without, *_ = ktied_number_and_slopes(*logs, None, False, 0.7, 0.3)
    assert with_mean - without == pytest.approx(0.35 * mean.double().square().sum().item(), rel=1e-6)
    summed, *_ = ktied_number_and_slopes(*logs, mean.detach().square(), True, 0.7, 0.3)
    assert summed == pytest.approx(with_mean, rel=1e-6)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_kls_of_vectors(size: int) -> None:
    inputs = single(size), single(size, seed=1)
    assert diagonal.divergence(*inputs, 0.3, 0.7) is not None

    def exact(mean: Tensor, log_std: Tensor) -> Tensor:
        variance = (2 * log_std).exp()
        return (0.5 * (0.7 * (variance + (mean - 0.3) ** 2) - 1 - math.log(0.7)) - log_std).sum()

    assert_same_as_in_float64(lambda m, s: diagonal_divergence(m, s, 0.3, 0.7), exact, inputs)
    constant = 0.5 * size * (1 + math.log(0.7))  # what the exact one has besides
    value = diagonal_number_and_slopes(*inputs, 0.3, 0.7, 0.0)[0]
    assert value == pytest.approx(exact(*double(inputs)).item() + constant, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_inputs_without_variance_have_the_gradients_of_the_reference(value: float) -> None:
    """The square of 1e-30 is zero in single precision, though the input is not."""
    x, weight, *logs = layer_inputs(4, 13, 5, 2, "none")
    x = x.detach()
    x[1] = value
    inputs = x.requires_grad_(), weight, *logs[:2]
    noise = single(4, 5, seed=8).detach()
    got, want = (slopes(function(*inputs, noise), inputs) for function in (ktied_linear, ktied_linear_reference))
    for mine, theirs in zip(got, want, strict=True):
        assert_relative(mine, theirs.double(), TOLERANCE)
        assert torch.isfinite(mine).all()


def test_gradients_of_gradients() -> None:
    x, weight, *logs = layer_inputs(6, 9, 5, 2, "random")
    inputs = x, weight, *logs[:2], single(6, 5, seed=8).detach(), *logs[2:]
    wide = double(inputs)
    results = []
    for function, given in ((ktied_linear, inputs), (ktied_linear_reference, wide)):
        free = [each for each in given if each is not None and each.requires_grad]
        first = torch.autograd.grad(function(*given).square().sum(), free, create_graph=True)
        results.append(slopes(torch.cat([each.flatten() for each in first]), free))
    for mine, theirs in zip(*results, strict=True):
        assert_relative(mine, theirs, 1e-5)


def test_an_input_that_came_about_by_another_one_counts_once() -> None:
    x, weight, *logs = layer_inputs(5, 5, 5, 2, "plain")
    inputs = x, weight, *logs[:2], single(5, 5, seed=8).detach(), *logs[2:]
    results = []
    for function, given in ((ktied_linear, inputs), (ktied_linear_reference, double(inputs))):
        x, *rest = given
        free = [each for each in rest if each is not None and each.requires_grad]
        output = function(x.detach() * rest[-3], *rest)  # of the bias
        results.append(torch.autograd.grad(output.square().sum(), free, create_graph=True))
    for mine, theirs in zip(*results, strict=True):
        assert_relative(mine, theirs, TOLERANCE)


def test_only_tensors_that_fit_are_read() -> None:
    """The library reads memory by itself: a tensor of another shape, order or precision must not reach it."""
    x, mean, fan_in, fan_out, *_ = layer_inputs(4, 6, 5, 2, "none")
    noise = single(4, 5)
    assert ktied.adds_noise(x, fan_in, fan_out, noise)
    rest = fan_in, fan_out, noise
    narrow, one, repeated = x[:, :5], noise[:1], noise[:1].expand(4, 5)
    others = [(narrow, *rest), (x.double(), *rest), (x.mT.contiguous().mT, *rest), (x, *rest, single(1))]
    for changed in (*others, (x, fan_in, fan_out, one), (x, fan_in, fan_out, repeated)):
        assert not ktied.adds_noise(*changed)
    assert not ktied.draws(mean, fan_in, fan_out, single(6, 5))
    assert not ktied.draws(mean[:4], fan_in, fan_out)
    assert ktied.divergence(fan_in, fan_out, mean[:4], 1.0) is None
    assert ktied.divergence(fan_in, fan_out[:, :1], mean, 1.0) is None
    assert diagonal.divergence(single(5), single(4), 0.0, 1.0) is None


def test_who_watches_operators_sees_plain_ones() -> None:
    with LargestTensor():
        assert not is_there()
    assert is_there()


def test_several_threads_share_large_matrices() -> None:
    x = single(3, 3)
    torch.set_num_threads(2)
    try:
        assert serves(1 << 18, x)
        assert not serves((1 << 18) + 1, x)
    finally:
        torch.set_num_threads(1)
    assert serves(1 << 30, x)
