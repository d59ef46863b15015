"""What the tests of weights drawn together share: a network, its loss, and the same in float64 at given draws."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.nn.home import kls_of_homes


class Net(nn.Module):
    """A convolution, dense layers with and without biases, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide, self.twice = nn.Conv2d(2, 5, 3), nn.Linear(80, 30), nn.Linear(30, 30)
        self.head = nn.Linear(30, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.wide(torch.tanh(self.conv(x)).flatten(1)))
        return self.head(self.twice(torch.tanh(self.twice(x))))


X, Y = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1])


def model(device: str = "cpu") -> br.nn.BayesianModule:
    torch.manual_seed(1)
    return br.bayesianize(Net(), br.KTied(2, 0.2), br.Normal(0.5), estimator=br.WeightSample()).to(device)


def nll_of(bnn: br.nn.BayesianModule) -> Tensor:
    """Of a pass."""
    x, y = on(next(bnn.parameters()).device)
    return F.cross_entropy(bnn(x), y)


@cache
def on(device: torch.device) -> tuple[Tensor, Tensor]:
    return X.to(device), Y.to(device)


def nodes(tensor: Tensor) -> set[str]:
    found, left = {}, [tensor.grad_fn]
    while left:
        node = left.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            left += [each for each, _ in node.next_functions]
    return {type(node).__name__ for node in found.values()}


def at_given_draws(bnn: br.nn.BayesianModule, draws: dict[str, Tensor]) -> tuple[list[Tensor], Tensor]:
    """In float64: the loss of a pass with these draws, W = mean + std ε for the same ε."""
    wide = copy.deepcopy(bnn).double()
    weights, wide_device = {}, next(wide.parameters()).device
    for name, home in wide.homes().items():
        posterior = home()
        with torch.no_grad():
            draw = draws[name].double()
            event = home.posterior._event(draw) if draw.ndim > 1 else draw
            noise = (event - posterior.mean) / posterior.variance.sqrt()
        weights |= posterior.split(posterior.from_noise(noise))
    loss = F.cross_entropy(wide.at(weights, X.to(wide_device).double()), Y.to(wide_device))
    total = loss + torch.stack(list(kls_of_homes(wide.homes().values()).values())).sum() / 50
    return list(torch.autograd.grad(total, list(wide.parameters()))), total
