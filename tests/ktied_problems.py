"""Small k-tied models and tensors for tests of the code that is written for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bayesrule as br


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64).add(0.1).requires_grad_()


def assert_all_close(got: list[Tensor], want: list[Tensor], tolerance: float = 1e-12) -> None:
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


class Subtle(br.Normal):
    """The same prior, of which no numbers are known: it takes the general path."""

    def numbers(self) -> None:
        return None


def step(bnn: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(5)
    loss = bnn(x).square().mean() + br.kl(bnn) / 7
    return loss, list(torch.autograd.grad(loss, list(bnn.parameters())))


def tied_model() -> tuple[nn.Module, Tensor]:
    bnn = br.bayesianize(nn.Linear(9, 12, bias=False).double(), br.KTied(2), br.Normal(0.5), br.LocalReparam())
    return bnn, random(6, 9).detach()
