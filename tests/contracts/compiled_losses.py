"""A script: forward pass, likelihood and KL of a network are one graph, with the plain step's gradients.

It runs alone, as the tests' shape checks break graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from compiled_step import Fixed
from torch import Tensor, nn

import bayesrule as br
from bayesrule.bench.models import SmallTransformer
from bayesrule.experiments.ktied.models import lenet, mlp

BATCH, CLASSES, VOCABULARY = 4, 3, 7
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: mlp(6, (5, 5), CLASSES), lambda: torch.randn(BATCH, 6).double()),
    "lenet": (lambda: lenet(CLASSES, kernel=3, width=2), lambda: torch.randn(BATCH, 3, 32, 32).double()),
    "transformer": (
        lambda: SmallTransformer(VOCABULARY, 8, heads=2, depth=1, classes=CLASSES),
        lambda: torch.randint(VOCABULARY, (BATCH, 3)),
    ),
}
FAMILIES = {"ktied": br.KTied(2), "diagonal": br.Diagonal(), "matrix-normal": br.MatrixNormal()}


def main(family: str, *names: str) -> None:
    """Print how many graphs and breaks torch._dynamo.explain found in each network."""
    torch.set_num_threads(1)
    for name in names:
        check(name, family)
    check_other_batches(family)


def check(name: str, family: str) -> None:
    """One network: by `explain`, and compiled as a whole."""
    torch.manual_seed(0)
    make, inputs = NETWORKS[name]
    net, x, y = make().double(), inputs(), torch.randint(CLASSES, (BATCH,))
    bnn = br.bayesianize(
        net, FAMILIES[family], br.Normal(0.5), likelihood=br.Categorical(),
        layers=lambda _, layer: not isinstance(layer, nn.Embedding),  # in a graph it draws all rows, else those used
    )  # fmt: skip
    objective = br.nn.NegativeELBO(bnn, n_data=100)
    bnn.draws.noise = Fixed()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return objective(bnn(x), y).total

    found = torch._dynamo.explain(loss)(x, y)
    print(f"{name}, {family}: {found.graph_count} graph, {found.graph_break_count} breaks")
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    parameters = list(bnn.parameters())
    want = torch.autograd.grad(loss(x, y), parameters, allow_unused=True)
    for got, expected in zip(torch.autograd.grad(compiled(x, y), parameters, allow_unused=True), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def check_other_batches(family: str) -> None:
    """Batches of another size compile too: once more, for any size."""
    bnn = br.bayesianize(nn.Linear(5, CLASSES), FAMILIES[family], estimator=br.LocalReparam())
    torch._dynamo.reset()
    compiled = torch.compile(bnn, backend=CompileCounter(), fullgraph=True)
    for size in (BATCH, BATCH + 2, BATCH + 1):
        compiled(torch.randn(size, 5)).sum().backward()
    print(f"{CompileCounter.graphs} graphs for any batch")


class CompileCounter:
    """Runs a graph as it is, and counts."""

    graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        """Nothing is compiled."""
        CompileCounter.graphs += 1
        return graph.forward


if __name__ == "__main__":
    main(*sys.argv[1:])
