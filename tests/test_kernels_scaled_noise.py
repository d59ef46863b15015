"""Fused local noise of mean-field and matrix normal layers: against formulas, the general path and float64."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.contractions import Linear
from bayesrule.estimators import LocalReparam
from bayesrule.kernels.operators import HAS_TRITON, fresh_noise_seed, seeded_normals
from bayesrule.kernels.scaled_noise import add_scaled_noise
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Family, GaussianPosterior
from bayesrule.posteriors.diagonal import DiagonalCovariance
from bayesrule.posteriors.ktied import KTiedCovariance
from bayesrule.posteriors.matrix_normal import MatrixNormalCovariance
from bayesrule.random import FromGenerator, Replay
from kernel_checks import assert_all_close, assert_graphs_draw_anew_and_replay_by_seed, assert_relative, slopes

SIZES = [(1, 1), (1, 7), (9, 1), (37, 300), (70, 65), (129, 257), (1000, 400)]
"""Rows and columns: odd ones, smaller and larger than the kernels' blocks."""
FAMILIES = [
    br.Diagonal(0.3),
    br.MatrixNormal(0.3),
    br.MatrixNormalDiagonal("kronecker", 0.3),
    br.MatrixNormalDiagonal("free", 0.3),
]
LAYER = Linear(MatrixView((5, 7)))
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")


def noise_inputs(
    rows: int, columns: int, by_row: bool, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """An output, and variances in float32 at least, of which some are zero where there are several rows."""
    variance = torch.rand(rows, 1 if by_row else columns, dtype=torch.promote_types(dtype, torch.float32)) + 0.1
    variance[1:2] = 0
    y = torch.randn(rows, columns).to(dtype)
    return y.to(device).requires_grad_(), variance.to(device).requires_grad_()


def exact_noise(y: Tensor, variance: Tensor, seed: Tensor) -> tuple[list[Tensor], Tensor]:
    """The formula in float64 at the noise of the seed; where there is no variance there is no noise."""
    wide = [tensor.detach().double().requires_grad_() for tensor in (y, variance)]
    noise = seeded_normals(seed, *y.shape, torch.float64)
    none = wide[1] == 0
    std = torch.where(none, 0.0, torch.where(none, 1.0, wide[1]).sqrt())
    return wide, wide[0] + std * noise


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_operators_pass_the_checks_of_torch(by_row: bool, dtype: torch.dtype) -> None:
    y, variance = noise_inputs(7, 5, by_row, dtype=dtype)
    seed = fresh_noise_seed(torch.device("cpu"))
    torch.library.opcheck(torch.ops.bayesrule.scaled_noise, (y, variance, seed))
    torch.library.opcheck(torch.ops.bayesrule.scaled_noise, (y.detach()[:1, :1].expand(7, 5), variance, seed))
    torch.library.opcheck(torch.ops.bayesrule.scaled_noise_backward, (y.detach(), variance.detach(), seed))


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("size", SIZES[:6])
def test_the_plain_operators_equal_the_formula(size: tuple[int, int], by_row: bool) -> None:
    inputs, seed = noise_inputs(*size, by_row), torch.tensor([11])
    wide, want = exact_noise(*inputs, seed)
    got = add_scaled_noise(*inputs, seed)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    assert_all_close(slopes(got, inputs), slopes(want, wide))


@pytest.mark.parametrize("by_row", [False, True])
def test_derivatives_of_the_operator(by_row: bool) -> None:
    inputs, seed = noise_inputs(1, 5, by_row), torch.tensor([11])
    assert torch.autograd.gradcheck(lambda *free: add_scaled_noise(*free, seed), inputs)
    assert torch.autograd.gradgradcheck(lambda *free: add_scaled_noise(*free, seed), inputs)


def test_a_compiler_sees_one_operator() -> None:
    inputs, seed = noise_inputs(7, 5, False), torch.tensor([11])

    def loss(*free: Tensor) -> Tensor:
        return add_scaled_noise(*free, seed).square().sum()

    got = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*inputs), inputs)
    assert_all_close(list(got), list(torch.autograd.grad(loss(*inputs), inputs)))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers take their operators, which on a CPU are plain."""
    monkeypatch.setattr("bayesrule.kernels.seeded.has_kernels", lambda _: True)
    for module in ("diagonal_layer", "ktied_layer"):
        monkeypatch.setattr(f"bayesrule.kernels.{module}.ordinary_on_cpu", lambda *_: False)


def built(family: Family, device: str = "cpu") -> tuple[GaussianPosterior, list[Tensor]]:
    """A posterior of a 7 × 5 weight at random parameters, and these."""
    generator = torch.Generator().manual_seed(3)
    start = family.init(torch.randn(7, 5, generator=generator), generator=generator)
    parameters = {
        name: (tensor + 0.2 * torch.randn(tensor.shape, generator=generator)).to(device).requires_grad_()
        for name, tensor in start.items()
    }
    posterior = family.build(parameters, event_dim=2)
    assert isinstance(posterior, GaussianPosterior)
    return posterior, list(parameters.values())


def with_noises(posterior: GaussianPosterior, x: Tensor, seeds: list[Tensor]) -> Tensor:
    """The formula, each term's normals from a seed: the diagonal's is asked for first."""
    covariance = posterior.covariance
    terms = [covariance] if isinstance(covariance, DiagonalCovariance | MatrixNormalCovariance) else covariance.terms
    output = x @ posterior.mean
    for term, seed in zip(reversed(terms), seeds, strict=True):
        noise = seeded_normals(seed, *output.shape, output.dtype)
        if isinstance(term, DiagonalCovariance | KTiedCovariance):
            output = output + (x.square() @ term.std.square()).sqrt() * noise
        else:
            output = output + (x @ term.fan_in_cholesky).norm(dim=1, keepdim=True) * (noise @ term.fan_out_cholesky.T)
    return output


def assert_layer_is_the_formula(family: Family, device: str, autocast: bool, shape: tuple[int, ...] = (6,)) -> None:
    posterior, parameters = built(family, device)
    x = torch.randn(*shape, 7, device=device).requires_grad_()
    inputs = [x, *parameters]
    torch.manual_seed(4)
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        got = LocalReparam().output(posterior, LAYER, x, FromGenerator())
    assert got.dtype == (torch.bfloat16 if autocast else torch.float32)
    torch.manual_seed(4)
    seeds = [fresh_noise_seed(torch.device(device)) for _ in range(1 + isinstance(family, br.MatrixNormalDiagonal))]
    want = with_noises(posterior, x.flatten(0, -2), seeds).reshape(got.shape)
    assert_relative(got, want.double(), 3e-2 if autocast else 1e-5)
    for mine, theirs in zip(slopes(got.float(), inputs), slopes(want, inputs), strict=True):
        assert_relative(mine, theirs.double(), 5e-2 if autocast else 2e-5)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("autocast", [False, True])
def test_layers_by_operators_are_the_formula(family: Family, autocast: bool) -> None:
    assert_layer_is_the_formula(family, "cpu", autocast)
    assert_layer_is_the_formula(family, "cpu", autocast, (2, 3))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_other_noise_and_transformations_keep_the_general_form(family: Family) -> None:
    posterior, _ = built(family)
    x, noises = torch.randn(6, 7), [torch.randn(6, 5)] * 2
    assert posterior.fused_output(LAYER, x, FromGenerator()) is not None
    assert posterior.fused_output(LAYER, x, Replay(noises)) is None
    assert posterior.fused_output(LAYER, x.double(), FromGenerator()) is None
    torch.vmap(lambda rows: _is_none(posterior.fused_output(LAYER, rows, FromGenerator())))(x.expand(2, 6, 7))


def _is_none(value: Tensor | None) -> Tensor:
    assert value is None
    return torch.zeros(())


def test_compiled_layers_are_one_graph_with_these_operators() -> None:
    script = Path(__file__).with_name("compiled_noise.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "Diagonal bayesrule.scaled_noise",
        "MatrixNormalDiagonal bayesrule.ktied_linear bayesrule.scaled_noise",
    ]


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_the_kernels_equal_float64(size: tuple[int, int], dtype: torch.dtype, by_row: bool) -> None:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    seed = fresh_noise_seed(torch.device("cuda"))
    inputs = noise_inputs(*size, by_row, "cuda", dtype)
    layouts: list[Callable[[Tensor], Tensor]] = [lambda y: y, lambda y: y.mT.contiguous().mT]
    for layout in layouts:
        got = add_scaled_noise(layout(inputs[0]), inputs[1], seed)
        wide, want = exact_noise(*inputs, seed)
        assert got.dtype == dtype
        assert_relative(got, want, tolerance)
        for mine, theirs in zip(slopes(got, inputs), slopes(want, wide), strict=True):
            assert_relative(mine, theirs, tolerance)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("autocast", [False, True])
def test_layers_by_kernels_are_the_formula(family: Family, autocast: bool) -> None:
    assert_layer_is_the_formula(family, "cuda", autocast)


@pytest.mark.gpu
@needs_triton
@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_graphs_draw_new_noise_and_replay_by_seed(family: Family) -> None:
    bnn = br.bayesianize(nn.Linear(64, 32), family, br.Normal(0.5), LocalReparam()).cuda()
    assert_graphs_draw_anew_and_replay_by_seed(bnn)
