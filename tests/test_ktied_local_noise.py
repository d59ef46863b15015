"""k-tied local noise and KL: equal to the materialised formulas, at the cost the factors have.

The oracle forms ``S = U Vᵀ`` and knows nothing of pairs; the cost is counted, in operations and in tensors, not timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from bayesrule import KTied, Normal
from bayesrule.contractions import Contraction, Conv, Linear
from bayesrule.posteriors import DiagonalCovariance, GaussianPosterior
from bayesrule.priors import kl_divergence
from largest_tensor import LargestTensor

RANKS = (1, 2, 3, 4)
SHAPES = ((1, 1), (1, 9), (7, 1), (5, 3), (13, 17), (31, 6))
PRIOR_STD = 0.3


def conv_module(kind: type[nn.Conv1d | nn.Conv2d | nn.Conv3d], *args: Any, **kwargs: Any) -> nn.Module:
    return kind(*args, bias=False, dtype=torch.float64, **kwargs)


CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: conv_module(nn.Conv1d, 3, 5, 4, stride=3, padding=2), (2, 3, 11)),
    "conv2d": (lambda: conv_module(nn.Conv2d, 2, 7, (3, 1), padding=(1, 0), dilation=(2, 1)), (3, 2, 5, 3)),
    "conv2d-same": (lambda: conv_module(nn.Conv2d, 3, 4, (3, 5), padding="same"), (1, 3, 4, 7)),
    "conv2d-groups": (lambda: conv_module(nn.Conv2d, 6, 9, (2, 3), groups=3, stride=(1, 2)), (2, 6, 3, 5)),
    "conv2d-depthwise": (lambda: conv_module(nn.Conv2d, 5, 10, 3, groups=5, padding=1), (2, 5, 3, 4)),
    "conv3d": (lambda: conv_module(nn.Conv3d, 2, 3, (1, 2, 3)), (1, 2, 3, 3, 5)),
}


def factors(fan_in: int, fan_out: int, rank: int) -> dict[str, Tensor]:
    """Unconstrained parameters of a k-tied posterior; ranks above the matrix are tried too."""
    shapes = {"mean": (fan_in, fan_out), "fan_in_log_factor": (fan_in, rank), "fan_out_log_factor": (fan_out, rank)}
    return {name: torch.randn(shape, dtype=torch.float64, requires_grad=True) for name, shape in shapes.items()}


def materialised(parameters: dict[str, Tensor]) -> Tensor:
    """``S_ij = Σ_a u_ia v_ja``."""
    return torch.einsum("ia,ja->ij", parameters["fan_in_log_factor"].exp(), parameters["fan_out_log_factor"].exp())


def local_variance(parameters: dict[str, Tensor], op: Contraction, x: Tensor) -> Tensor:
    (noise,) = KTied().build(parameters).project(op, x)
    assert noise.mix is None  # the scales are all there is
    return noise.scale.square()


def same(got: Tensor, wanted: Tensor) -> None:
    """To 1e-12 of the largest entry."""
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() <= 1e-12 * wanted.abs().max()


def same_with_gradients(got: Tensor, wanted: Tensor, inputs: Sequence[Tensor]) -> None:
    same(got, wanted)
    weights = torch.rand_like(wanted)
    gradients = [torch.autograd.grad((value * weights).sum(), inputs) for value in (got, wanted)]
    for mine, theirs in zip(*gradients, strict=True):
        same(mine, theirs)


def noise_inputs(parameters: dict[str, Tensor], x: Tensor) -> list[Tensor]:
    return [x, parameters["fan_in_log_factor"], parameters["fan_out_log_factor"]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", RANKS)
def test_variance_of_a_linear_output(rank: int, shape: tuple[int, int]) -> None:
    """``Σ_i x_i² S_ij²``."""
    fan_in, fan_out = shape
    op, parameters = Linear.of(nn.Linear(fan_in, fan_out)), factors(fan_in, fan_out, rank)
    x = torch.randn(4, 3, fan_in, dtype=torch.float64, requires_grad=True)
    wanted = torch.einsum("bti,ij->btj", x**2, materialised(parameters) ** 2)
    same_with_gradients(local_variance(parameters, op, x), wanted, noise_inputs(parameters, x))


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("rank", RANKS)
def test_variance_of_a_convolution(rank: int, name: str) -> None:
    """``x² * S²``, by the module itself; its weight is (fan-out, …), so S is transposed into it."""
    make, input_shape = CONVOLUTIONS[name]
    module = make()
    op = Conv.of(module)
    parameters = factors(math.prod(module.weight.shape[1:]), module.weight.shape[0], rank)
    x = torch.randn(input_shape, dtype=torch.float64, requires_grad=True)
    weight = (materialised(parameters) ** 2).T.reshape(module.weight.shape)
    wanted = functional_call(module, {"weight": weight}, (x**2,))
    same_with_gradients(local_variance(parameters, op, x), wanted, noise_inputs(parameters, x))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rank", RANKS)
def test_kl_and_its_gradients(rank: int, shape: tuple[int, int]) -> None:
    parameters = factors(*shape, rank)
    got = kl_divergence(KTied().build(parameters), Normal(PRIOR_STD))
    std, prior = materialised(parameters), torch.tensor(PRIOR_STD, dtype=torch.float64)
    ratios = (std**2 + parameters["mean"] ** 2) / prior**2
    same_with_gradients(got, (prior.log() - std.log() + (ratios - 1) / 2).sum(), list(parameters.values()))


# What it costs


def operations(compute: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()


def largest(compute: Callable[[], object]) -> int:
    with LargestTensor() as made:
        compute()
    return made.entries


def pairs(rank: int) -> int:
    return rank * (rank + 1) // 2


@dataclass(frozen=True)
class Cost:
    """A dense layer of given sizes."""

    batch: int = 3
    rank: int = 2
    fan_in: int = 61
    fan_out: int = 53

    @property
    def posterior(self) -> GaussianPosterior:
        return KTied(self.rank).build(factors(self.fan_in, self.fan_out, self.rank))

    @property
    def op(self) -> Linear:
        return Linear.of(nn.Linear(self.fan_in, self.fan_out))

    def forward(self) -> Callable[[], Tensor]:
        posterior, op = self.posterior, self.op
        x = torch.randn(self.batch, self.fan_in, dtype=torch.float64, requires_grad=True)
        return lambda: posterior.project(op, x)[0].scale

    def forward_and_backward(self) -> Callable[[], None]:
        forward = self.forward()
        return lambda: forward().sum().backward()


COSTS = [
    *(Cost(batch=batch) for batch in (1, 6, 12, 24)),
    *(Cost(rank=rank) for rank in RANKS),
    *(Cost(fan_in=fan_in) for fan_in in (122, 244)),
    *(Cost(fan_out=fan_out) for fan_out in (106, 212)),
]


@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_operations_of_the_products(cost: Cost) -> None:
    """``2·B·r·(m+n)`` forward with r = k(k+1)/2, as much again for either gradient; ``2·B·m·n`` with a free σ."""
    forward = 2 * cost.batch * pairs(cost.rank) * (cost.fan_in + cost.fan_out)
    assert operations(cost.forward()) == forward
    assert operations(cost.forward_and_backward()) == 3 * forward
    free = DiagonalCovariance(torch.ones(cost.fan_in, cost.fan_out))
    x = torch.ones(cost.batch, cost.fan_in)
    assert operations(lambda: free.project(cost.op, x)) == 2 * cost.batch * cost.fan_in * cost.fan_out


@pytest.mark.parametrize(
    ("rank", "groups"),
    [(1, 1), *((rank, groups) for rank in RANKS[1:] for groups in (1, 2, 4))],  # rank 1 in groups is no matrix product
)
def test_operations_of_a_convolution(rank: int, groups: int) -> None:
    """``2·rows·r·(groups·fan_in + fan_out)``: r filters for each group, then a 1×1 map."""
    op, posterior, x = grouped_convolution(rank, groups)
    rows, (fan_in, fan_out) = op.rows(x), posterior.event_shape
    expected = 2 * rows * pairs(rank) * (groups * fan_in + fan_out)
    assert operations(lambda: posterior.project(op, x)) == expected


def grouped_convolution(rank: int, groups: int, batch: int = 2) -> tuple[Conv, GaussianPosterior, Tensor]:
    op = Conv.of(nn.Conv2d(4, 40, 3, groups=groups))
    posterior = KTied(rank).build(factors(op.view.fan_in, op.view.fan_out, rank))
    return op, posterior, torch.randn(batch, 4, 5, 6, dtype=torch.float64)


@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_local_noise_makes_nothing_of_the_weights_size(cost: Cost) -> None:
    """The largest tensor, forward and backward, is one side's pair products or one side of the batch."""
    side = max(cost.fan_in, cost.fan_out)
    for compute in (cost.forward(), cost.forward_and_backward()):
        assert largest(compute) == side * max(pairs(cost.rank), cost.batch) < cost.fan_in * cost.fan_out


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("rank", RANKS)
def test_a_convolution_makes_no_copy_of_its_factors_for_every_position(rank: int, groups: int) -> None:
    op, posterior, x = grouped_convolution(rank, groups)
    channels = max(posterior.event_shape[1], groups * pairs(rank))
    assert largest(lambda: posterior.project(op, x)) == op.rows(x) * channels
