"""A script: what a compiled loss with drawn weights has in its graph. It runs alone, as shape checks break graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br


def main() -> None:
    """Print how many operators draw, and how many results the graph has; fail where draws do not follow the seed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 4))
    bnn = br.bayesianize(net, br.KTied(2, 0.3), br.Normal(0.5), br.WeightSample())
    x, y = torch.randn(6, 30), torch.randint(4, (6,))
    draws, results = [], []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        targets = [str(node.target) for node in graph.graph.nodes]
        draws.append(sum("ktied_draw" in target for target in targets))
        output = next(node for node in graph.graph.nodes if node.op == "output")
        results.append(len(output.args[0]))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    compiled = torch.compile(lambda: F.cross_entropy(bnn(x), y) + br.kl(bnn) / 50, backend=backend, fullgraph=True)
    bnn(x)  # a pass before, which leaves what it leaves

    def at(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        loss = compiled()
        return [loss.detach(), *torch.autograd.grad(loss, list(bnn.parameters()))]

    first, again, other = at(1), at(1), at(2)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(bnn, parameters, (x,)), y)

    slopes = torch.compile(torch.func.grad(loss), backend="aot_eager")(dict(bnn.named_parameters()))
    assert all(slope.any() for slope in slopes.values())
    print(f"{draws[0]} draws\n{results[0]} result")


if __name__ == "__main__":
    main()
