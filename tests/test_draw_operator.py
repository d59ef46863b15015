"""A drawn k-tied weight as one operator in compiled code on a CPU: torch's checks, the formula, what a graph has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesrule.kernels.draw_operator import drawn_by_operator
from bayesrule.kernels.native import is_there, ktied
from bayesrule.kernels.operators import seeded_normals
from kernel_checks import assert_relative

SIZES = [(1, 1, 1), (7, 3, 1), (33, 17, 2), (13, 60, 3), (9, 4, 17)]
"""Fan-in, fan-out and rank, the last more than the library keeps in registers."""
SEED = torch.tensor([11])


def parameters(fan_in: int, fan_out: int, rank: int) -> list[Tensor]:
    shapes = (fan_out, fan_in), (fan_in, rank), (fan_out, rank)
    return [(0.5 * torch.randn(shape)).requires_grad_() for shape in shapes]


def by_operator(*tensors: Tensor) -> Tensor:
    return torch.ops.bayesrule.ktied_draw(*tensors, SEED)[0]


def exactly(mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor) -> Tensor:
    noise = seeded_normals(SEED, mean.shape[0], mean.shape[1], torch.float64)
    return mean + fan_out_logs.exp() @ fan_in_logs.exp().mT * noise


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.skipif(not is_there(), reason="no compiler")), False])
def by_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(ktied, "serves", lambda *_: False)
        monkeypatch.setattr(ktied, "library", lambda: None)
    return request.param


@pytest.mark.usefixtures("by_library")
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_draw_and_its_gradients(size: tuple[int, int, int]) -> None:
    free = parameters(*size)
    wide = [tensor.detach().double().requires_grad_() for tensor in free]
    got, want = by_operator(*free), exactly(*wide)
    assert_relative(got, want, 3e-6)
    cotangent = torch.randn_like(got)
    slopes = torch.autograd.grad(got, free, cotangent), torch.autograd.grad(want, wide, cotangent.double())
    for mine, theirs in zip(*slopes, strict=True):
        assert_relative(mine, theirs, 3e-6)


@pytest.mark.usefixtures("by_library")
def test_it_passes_the_checks_of_torch() -> None:
    free = parameters(6, 5, 2)
    torch.library.opcheck(torch.ops.bayesrule.ktied_draw, (*free, SEED))
    factors = torch.ops.bayesrule.ktied_draw(*free, SEED)[1].detach()
    gradient, _, *logs = torch.randn(5, 6), *(tensor.detach() for tensor in free)
    torch.library.opcheck(torch.ops.bayesrule.ktied_draw_backward, (gradient, *logs, SEED, factors))


@pytest.mark.parametrize("changed", ["double", "own generator", "other noise"])
def test_what_it_is_not_for_is_left_to_others(changed: str) -> None:
    from bayesrule.kernels import FastNoise
    from bayesrule.random import Replay

    free = [tensor.double() if changed == "double" else tensor for tensor in parameters(6, 5, 2)]
    sources: dict[str, Callable[[], object]] = {
        "double": FastNoise, "own generator": lambda: FastNoise(torch.Generator()), "other noise": Replay,
    }  # fmt: skip
    assert drawn_by_operator(*free, sources[changed]()) is None
    assert drawn_by_operator(*parameters(6, 5, 2), FastNoise()) is not None


def test_compiled_draws_are_drawn_anew_and_stay_in_the_graph() -> None:
    """A draw that were a result of the graph would be kept, and have a gradient of zeros added to its own."""
    script = Path(__file__).parent / "contracts" / "compiled_draws.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:2] == ["2 draws", "1 result"]
