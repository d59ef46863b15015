"""A script: compiled layers of noise from seeds equal plain ones. It runs alone, as shape checks break graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.kernels import diagonal_layer, ktied_layer, seeded

FAMILIES = br.Diagonal(0.3), br.MatrixNormalDiagonal("kronecker", 0.3)


def main() -> None:
    """Print how many operators with noise from a seed the compiled graph of each family has."""
    torch.set_num_threads(1)
    seeded.has_kernels = lambda _: True  # as on a GPU; the operators themselves stay plain
    for module in (diagonal_layer, ktied_layer):
        module.ordinary_on_cpu = lambda *_: False
    for family in FAMILIES:
        bnn = br.bayesianize(nn.Linear(7, 5), family, br.Normal(0.5), br.LocalReparam(), bias="point")
        x = torch.randn(6, 7)
        seen: list[str] = []

        def backend(graph: torch.fx.GraphModule, inputs: list[Tensor], seen: list[str] = seen) -> object:
            seen += [str(node.target) for node in graph.graph.nodes if "bayesrule" in str(node.target)]
            return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

        results = []
        for model in (bnn, torch.compile(bnn, backend=backend, fullgraph=True)):
            torch.manual_seed(8)
            loss = model(x).square().mean()
            results.append([loss, *torch.autograd.grad(loss, list(bnn.parameters()))])
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        print(type(family).__name__, *sorted(seen))


if __name__ == "__main__":
    main()
