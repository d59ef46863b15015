"""Lanes of recorded graphs: work beside other work finds what it finds in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.cuda_graphs import DIVERGENCE, NOISE, apart, beside, independent, recording, this_moment, total_beside


def test_outside_of_a_recording_everything_is_done_in_turn() -> None:
    done = []
    assert this_moment() is None
    with beside(NOISE) as first:
        done.append("beside")
    with beside(DIVERGENCE, this_moment()) as second:
        done.append("beside it")
    first()
    second()
    assert done == ["beside", "beside it"]
    assert independent(lambda: torch.ones(())).item() == 1
    assert total_beside(DIVERGENCE, [torch.tensor(2.0), torch.tensor(3.0)]).item() == 5


def _recorded_steps(serial: bool, half: bool, posterior: br.KTied | br.Diagonal, ways: int = 1) -> list[Tensor]:
    """Outputs, KLs and gradients of a few replays, which each draw their own noise.

    With several ways a parameter's gradient is a sum: of passes before one backward pass, of another term of the loss,
    and of what is there already.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(70, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10)).cuda()
    bnn = br.bayesianize(net, posterior, br.Normal(0.3), br.LocalReparam()).cuda()
    x, y = torch.randn(100, 70, device="cuda"), torch.randint(0, 10, (100,), device="cuda")

    def step() -> tuple[Tensor, Tensor]:
        bnn.zero_grad()
        for _ in range(ways):
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                nll = torch.stack([F.cross_entropy(bnn(x), y) for _ in range(ways)]).sum()
            kl, loss = br.kl(bnn), nll
            if ways > 1:
                loss = loss + 0.1 * torch.stack([parameter.square().sum() for parameter in bnn.parameters()]).sum()
            (loss + kl / 1000).backward()
        return nll.detach(), kl.detach()

    with apart():
        for _ in range(3):
            step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph) if serial else recording(graph):
        found = step()
    torch.cuda.manual_seed(3)
    kept: list[Tensor] = []
    for _ in range(20):
        graph.replay()
        gradients = [parameter.grad for parameter in bnn.parameters() if parameter.grad is not None]
        kept += [each.clone() for each in (*found, *gradients)]
    return kept


@pytest.fixture
def matrix_units() -> Iterator[None]:
    """In full precision noise has no lane."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True  # which cannot be deleted, as a monkeypatch would to undo it
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.gpu
@pytest.mark.usefixtures("matrix_units")
def test_lanes_without_a_gradient() -> None:
    """Nothing is saved for a backward pass, and so memory is free for others as soon as a layer is done."""
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    bnn = br.bayesianize(net, br.KTied(2), br.Normal(0.3), br.LocalReparam()).cuda().requires_grad_(False)
    x = torch.randn(4096, 64, device="cuda")
    found = []
    for serial in (False, True):
        with apart():
            bnn(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph) if serial else recording(graph):
            output = bnn(x)
        torch.cuda.manual_seed(5)
        for _ in range(20):
            graph.replay()
        found.append(output.clone())
    assert torch.equal(*found)


@pytest.mark.gpu
@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("posterior", [br.KTied(2), br.Diagonal()], ids=["ktied", "mean-field"])
@pytest.mark.parametrize("half", [False, True], ids=["tf32", "bf16"])
def test_lanes_change_nothing(half: bool, posterior: br.KTied | br.Diagonal) -> None:
    beside_each_other, in_turn = (_recorded_steps(serial, half, posterior) for serial in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(beside_each_other, in_turn, strict=True))
    assert not torch.equal(beside_each_other[0], beside_each_other[len(beside_each_other) // 20])


@pytest.mark.gpu
@pytest.mark.usefixtures("matrix_units")
@pytest.mark.parametrize("half", [False, True], ids=["tf32", "bf16"])
def test_lanes_change_nothing_where_gradients_come_several_ways(half: bool) -> None:
    """Their order, and with it the rounding of their sums, may differ."""
    beside_each_other, in_turn = (_recorded_steps(serial, half, br.KTied(2), ways=2) for serial in (False, True))
    for one, other in zip(beside_each_other, in_turn, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


@pytest.mark.gpu
def test_the_first_replay_comes_after_all_that_recording_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2.11 sets a generator's offset to 0 on the recording's own stream, which other programs may hold up."""
    generator, room = torch.Generator("cuda").manual_seed(0), torch.empty(1000, device="cuda")
    first, second = (room.normal_(generator=generator).clone() for _ in range(2))
    begin = torch.cuda.CUDAGraph.capture_begin

    def late(graph: torch.cuda.CUDAGraph, *args: object, **options: object) -> None:
        torch.cuda._sleep(10**8)  # cycles
        begin(graph, *args, **options)

    def draws(before: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator.manual_seed(0))
        assert torch.equal(room.normal_(generator=generator), first)
        with recording(graph):
            torch.cuda._sleep(before)
            room.normal_(generator=generator)
        graph.replay()
        return graph

    # The first recording of a process loads kernels, and waits for the device to do so.
    kept = draws(before=1)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", late)
    for _ in range(2):
        kept = draws(before=3 * 10**8)  # what was late would be done by now, and written over what the replay has set
        assert torch.equal(room, second)
    del kept


@pytest.mark.gpu
def test_a_recording_that_fails_leaves_streams_and_generators_as_they_were() -> None:
    own, stream = torch.Generator("cuda"), torch.cuda.current_stream()

    def seeded() -> None:
        torch.cuda.manual_seed(0)
        own.manual_seed(1)

    def draws() -> list[Tensor]:
        return [torch.randn(3, device="cuda"), torch.randn(3, device="cuda", generator=own)]

    seeded()
    with pytest.raises(RuntimeError, match="captur"), recording(torch.cuda.CUDAGraph(), [own]):
        draws()[0].sum().item()
    found = draws()
    assert torch.cuda.current_stream() == stream
    seeded()
    assert all(torch.equal(left, right) for left, right in zip(draws(), found, strict=True))
