"""A script: a compiled step has the plain step's gradients. It runs alone, as the tests' shape checks break graphs."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import networks
import torch
from torch import Tensor

import bayesrule as br
from bayesrule.random import Law


@dataclass
class Fixed:
    """The same noise for the same shape, so that a compiled pass and a plain one can be compared."""

    noises: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        if shape not in self.noises:
            self.noises[shape] = torch.randn(shape, dtype=like.dtype)
        return self.noises[shape]


def main(backend: str, *names: str) -> None:
    """Print how many graphs each network took."""
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    for name in names:
        network = networks.network(name)
        bnn = br.bayesianize(network.module, br.KTied(2, init_std=0.3), br.Normal(0.5), estimator=br.Auto())
        bnn.draws.noise = Fixed()

        def step(model: torch.nn.Module, network=network, bnn=bnn) -> list[Tensor]:
            loss = sum(output.square().sum() for output in network(model)) + br.kl(bnn)
            return list(torch.autograd.grad(loss, list(bnn.parameters())))

        want = step(bnn)
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(bnn, backend=backend, fullgraph=True)
        for _ in range(2):
            for got, expected in zip(step(compiled), want, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
        print(f"{name}: {counters['stats']['unique_graphs']} graph")
        bnn.draws.noise = br.random.FromGenerator()
        torch._dynamo.reset()
        redrawn = torch.compile(bnn, backend=backend, fullgraph=True)
        first, second = (network(redrawn) for _ in range(2))
        if any(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
            raise SystemExit(f"{name}: a compiled pass repeats its noise")


if __name__ == "__main__":
    main(*sys.argv[1:])
