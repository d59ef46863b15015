"""What the tests of fused code share: gradients along a fixed direction, tolerances, and recorded draws."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bayesrule.cuda_graphs import apart, recording


def slopes(output: Tensor, inputs: Iterable[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(output.shape, generator=generator).to(output)
    return list(torch.autograd.grad(output, list(inputs), cotangent, retain_graph=True))


def assert_all_close(got: list[Tensor], want: list[Tensor], tolerance: float = 1e-11) -> None:
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def assert_relative(got: Tensor, want: Tensor, tolerance: float) -> None:
    """To a tolerance relative to the largest entry."""
    assert (got.double() - want).abs().max() <= tolerance * want.abs().max().clamp_min(1e-30)


def assert_graphs_draw_anew_and_replay_by_seed(bnn: nn.Module) -> None:
    """Of a layer with 64 inputs on a GPU."""
    x = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        with apart():
            bnn(x)
        graph = torch.cuda.CUDAGraph()
        with recording(graph):
            output = bnn(x)
    runs = []
    for _ in range(2):
        torch.cuda.manual_seed(7)
        draws = []
        for _ in range(3):
            graph.replay()
            draws.append(output.clone())
        runs.append(torch.stack(draws))
    assert torch.equal(*runs)
    assert not torch.equal(runs[0][0], runs[0][1])
