"""Derivatives of the KL taken forward, against those in reverse; of what it is made of, against differences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import bayesrule as br
from bayesrule.kernels import sum_log_product
from bayesrule.linalg import log_diagonal_cholesky, sum_of_squares, triangular_moments
from bayesrule.posteriors import Family

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in forward mode

FAMILIES = [
    br.Diagonal(),
    *map(br.KTied, (1, 2, 3)),
    br.ClippedLowRank(floor=1e-3),
    br.MatrixNormal(),
    br.MatrixNormalDiagonal("kronecker"),
    br.MatrixNormalDiagonal("free"),
    br.Full(),
]
Tensors = tuple[Tensor, ...]


class KL(nn.Module):
    """The KL as a module's output, which `functional_call` takes."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.bnn = br.bayesianize(nn.Linear(4, 3).double(), family)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(normal(parameter, 0.2))

    def forward(self) -> Tensor:
        return br.kl(self.bnn)

    def at(self, *values: Tensor) -> Tensor:
        """The KL at other parameters."""
        names = (name for name, _ in self.named_parameters())
        return torch.func.functional_call(self, dict(zip(names, values, strict=True)), ())

    @property
    def here(self) -> Tensors:
        return tuple(parameter.detach() for parameter in self.parameters())

    @property
    def gradient(self) -> Tensors:
        """In reverse mode, by compiled code where there is such."""
        return torch.autograd.grad(self(), tuple(self.parameters()))


def normal(like: Tensor, std: float = 1.0) -> Tensor:
    return std * torch.randn(like.shape, dtype=torch.float64)


def inner(left: Tensors, right: Tensors) -> Tensor:
    return torch.stack([(one * other).sum() for one, other in zip(left, right, strict=True)]).sum()


def assert_same(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def derivative(of: Callable[..., Tensor], at: Tensors, along: Tensors) -> Tensor:
    """By `forward_ad`, without `torch.func`."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(of(*map(forward_ad.make_dual, at, along))).tangent


@pytest.fixture(params=FAMILIES, ids=str)
def kl(request: pytest.FixtureRequest) -> KL:
    return KL(request.param)


def test_first_derivatives(kl: KL) -> None:
    along = tuple(map(normal, kl.here))
    want = inner(kl.gradient, along)
    value, got = torch.func.jvp(kl.at, kl.here, along)
    assert_same(value, kl().detach())
    assert_same(got, want)
    assert_same(derivative(kl.at, kl.here, along), want)
    assert_same(torch.func.jacfwd(kl.at, tuple(range(len(along))))(*kl.here), kl.gradient)


def test_second_derivatives(kl: KL) -> None:
    every = tuple(range(len(kl.here)))
    want = torch.func.jacrev(torch.func.jacrev(kl.at, every), every)(*kl.here)
    assert_same(torch.func.hessian(kl.at, every)(*kl.here), want)
    assert_same(torch.func.jacfwd(torch.func.jacfwd(kl.at, every), every)(*kl.here), want)
    assert_same(torch.func.jacrev(torch.func.jacfwd(kl.at, every), every)(*kl.here), want)


def test_second_derivatives_without_functions(kl: KL) -> None:
    at, along = tuple(kl.parameters()), tuple(map(normal, kl.here))
    want = torch.autograd.grad(inner(torch.autograd.grad(kl(), at, create_graph=True), along), at)
    with forward_ad.dual_level():
        slopes = torch.autograd.grad(kl.at(*map(forward_ad.make_dual, at, along)), at)
        assert_same(tuple(forward_ad.unpack_dual(slope).tangent for slope in slopes), want)
    got = torch.autograd.functional.hessian(kl.at, kl.here, vectorize=True, outer_jacobian_strategy="forward-mode")
    products = tuple(
        sum(torch.tensordot(block, other, other.ndim) for block, other in zip(row, along, strict=True)) for row in got
    )
    assert_same(products, want)


def test_a_gradient_found_before(kl: KL) -> None:
    """The reverse pass is differentiated forward, of a forward pass that was not."""
    _, pullback = torch.func.vjp(kl.at, *kl.here)
    one = torch.ones((), dtype=torch.float64)
    assert_same(torch.func.jvp(pullback, (one,), (one,))[1], kl.gradient)


def test_in_a_compiler() -> None:
    """In a process of its own: compilers cannot see through checks of shapes."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_in_a_compiler(family: Family) -> None:
    """A derivative in what is compiled, and of it."""
    torch._dynamo.reset()
    kl = KL(family)
    along = tuple(map(normal, kl.here))
    want = inner(kl.gradient, along)
    inside = torch.compile(lambda at: torch.func.jvp(kl.at, at, along)[1], backend="aot_eager", fullgraph=True)
    assert_same(inside(kl.here), want)
    compiled = torch.compile(kl.at, backend="aot_eager", fullgraph=True)
    assert_same(compiled(*kl.here), kl().detach())
    assert_same(derivative(compiled, kl.here, along), want)  # compiled once more, not what was there


def squares(x: Tensor) -> Tensor:
    return sum_of_squares(x.mT, 2)


PARTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "sum of logarithms": (sum_log_product, [(5, 2), (4, 2)]),
    "a batch of sums": (sum_log_product, [(3, 1, 5, 2), (2, 4, 2)]),
    "factor": (log_diagonal_cholesky, [(2, 3, 3)]),
    "moments": (lambda raw: triangular_moments(log_diagonal_cholesky(raw)), [(2, 3, 3)]),
    "squares": (squares, [(3, 4)]),
    "squares around a centre": (lambda x, centre: sum_of_squares(x, 1, centre), [(2, 3), (3,)]),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_against_differences(part: str) -> None:
    function, shapes = PARTS[part]
    inputs = [torch.rand(shape, dtype=torch.float64).add(0.1).requires_grad_() for shape in shapes]
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_forward_grad=True)
    assert gradgradcheck(function, inputs, check_fwd_over_rev=True)


def test_squares_have_a_second_derivative_at_zero() -> None:
    got = torch.func.hessian(squares)(torch.zeros(3, 2, dtype=torch.float64))
    assert_same(got.reshape(6, 6), 2 * torch.eye(6, dtype=torch.float64))


if __name__ == "__main__":
    for each in (br.KTied(2), br.MatrixNormal()):  # whose biases are Diagonal
        check_in_a_compiler(each)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_gradients_of_a_kl_from_before_carry_tangents(family: Family) -> None:
    """In single precision too, where they are found by compiled code."""
    for kl in (KL(family), KL(family).float()):
        parameters, value = tuple(kl.parameters()), kl()
        exact = torch.autograd.grad(value, parameters, retain_graph=True)
        with forward_ad.dual_level():
            cotangent = forward_ad.make_dual(torch.ones_like(value), torch.full_like(value, 3.0))
            found = [forward_ad.unpack_dual(each) for each in torch.autograd.grad(value, parameters, cotangent)]
        for (primal, tangent), each in zip(found, exact, strict=True):
            torch.testing.assert_close((primal, tangent), (each, 3 * each))
