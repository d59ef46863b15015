"""A script: a compiled loss and KL of convolutions with pooling have the plain step's gradients.

It runs alone, as the tests' shape checks break graphs.
"""

from __future__ import annotations

import sys

import torch
from compiled_step import Fixed
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.train import compile_options


def main(options: str = "ours") -> None:
    """Print how far the compiled gradients are from the plain ones; with ``default`` options, very far."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 32), nn.ReLU(), nn.Linear(32, 5),
    ).double()  # fmt: skip
    x, y = torch.randn(8, 1, 28, 28).double(), torch.randint(0, 5, (8,))
    bnn = br.bayesianize(net, br.MatrixNormal(), br.Normal(0.5), br.Auto())
    bnn.draws.noise = Fixed()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(bnn(x), y) + br.kl(bnn) / 1e6

    parameters = list(bnn.parameters())
    want = torch.autograd.grad(loss(x, y), parameters)
    compiled = torch.compile(loss, fullgraph=True, options=compile_options() if options == "ours" else None)
    found = torch.autograd.grad(compiled(x, y), parameters)
    worst = max(float((got - plain).norm() / plain.norm()) for got, plain in zip(found, want, strict=True))
    print(f"{worst:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
