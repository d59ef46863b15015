"""Recording of CUDA graphs: safe from Python's garbage collector, with lanes for work that need not wait its turn.

A small kernel leaves most of a GPU idle. What a recorded graph has on different lanes runs at the same time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SEEDS, NOISE, DIVERGENCE = 0, 1, 2
"""Lanes. Memory of a lane is used again by the same lane only: none may start before what it wrote has been read."""


@dataclass
class _Lanes:
    """Of a graph that is being recorded, and what must not be freed, and so written over, before it is complete."""

    streams: dict[int, torch.cuda.Stream] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)
    made: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def stream(self, lane: int) -> torch.cuda.Stream:
        if lane not in self.streams:
            self.streams[lane] = torch.cuda.Stream()
        return self.streams[lane]


@dataclass(frozen=True)
class Moment:
    """A point in a graph that is being recorded, from which a lane may start."""

    lanes: _Lanes
    event: torch.cuda.Event


_open: list[_Lanes] = []
"""Of the recording that is going on, if one is. Backward passes run in threads of their own and see it, too."""
_steps: list[object] = []
"""Steps under way that are recorded, or done in the ordinary way before they are."""


def to_be_recorded() -> bool:
    """Whether this step is recorded, or precedes a recording: then nobody waits for Python in the ones that count."""
    return bool(_steps)


@contextmanager
def recording(
    graph: torch.cuda.CUDAGraph, generators: Iterable[torch.Generator] = (), **options: Any
) -> Iterator[None]:
    """`torch.cuda.graph` without three of its traps.

    The cyclic collector waits: an old graph that it frees meanwhile would end the process. The recording's own stream
    is waited for: there offsets of generators are set to 0, which may be after the first replay has set them. And one
    that fails leaves the stream and the generators as they were.

    Args:
        graph: What is recorded.
        generators: That are drawn from, besides torch's own.
        **options: Of `torch.cuda.graph`.
    """
    generators, stream = _registered(graph, generators), torch.cuda.current_stream()
    running = gc.isenabled()
    gc.disable()
    try:
        with recorded_step(), torch.cuda.graph(graph, **options):
            _open.append(_Lanes())
            try:
                yield
            finally:
                _open.pop()
        torch.cuda.synchronize()
    except BaseException:
        torch.cuda.set_stream(stream)  # which torch forgets where the end of a recording fails, too
        _end_recording(generators)
        raise
    finally:
        if running:
            gc.enable()


def _registered(graph: torch.cuda.CUDAGraph, generators: Iterable[torch.Generator]) -> tuple[torch.Generator, ...]:
    found = tuple(generators)
    for generator in found:
        graph.register_generator_state(generator)
    return found


def _end_recording(generators: Iterable[torch.Generator]) -> None:
    """Of generators that were in one that failed, and would refuse to draw outside of it: one that succeeds ends it."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    _registered(graph, generators)
    with torch.cuda.graph(graph):
        torch.zeros((), device="cuda")


@contextmanager
def apart(stream: torch.cuda.Stream | None = None) -> Iterator[None]:
    """On a stream of its own, or the one given, as recording asks of the steps that precede it."""
    stream = torch.cuda.Stream() if stream is None else stream
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with recorded_step(), torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def recorded_step() -> Iterator[None]:
    """A step that is recorded, or precedes a recording."""
    _steps.append(None)
    try:
        yield
    finally:
        _steps.pop()


def independent(make: Callable[[], Tensor]) -> Tensor:
    """A small tensor that depends on nothing: in a recorded graph on the lane of seeds, which waits for no other.

    Who reads it has to call `after_seeds` before.
    """
    if not _open:
        return make()
    lanes = _open[-1]
    if SEEDS not in lanes.streams:
        lanes.stream(SEEDS).wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(lanes.stream(SEEDS)):
        lanes.kept.append(make())
    return lanes.kept[-1]


def after_seeds() -> None:
    """What follows waits for what `independent` has made so far."""
    if _open and SEEDS in _open[-1].streams:
        torch.cuda.current_stream().wait_stream(_open[-1].stream(SEEDS))


def this_moment() -> Moment | None:
    """Where the recording is; None outside of one."""
    return Moment(_open[-1], torch.cuda.current_stream().record_event()) if _open else None


def beside(lane: int, since: Moment | None = None) -> AbstractContextManager[Callable[[], None]]:
    """Work that a recorded graph may do on a lane while it goes on with what follows; in turn outside of a recording.

    What it yields has to be called before anything follows that reads what the work wrote or overwrites what it reads.

    Args:
        lane: Work on the same lane keeps its order.
        since: The moment in the recording that the work has to wait for; by default this one.
    """
    return _beside(lane, since) if _open else in_turn()


def in_turn() -> AbstractContextManager[Callable[[], None]]:
    """In place of `beside`, for work that would only slow down what it runs beside."""
    return _IN_TURN


_IN_TURN = nullcontext(lambda: None)


@contextmanager
def _beside(lane: int, since: Moment | None) -> Iterator[Callable[[], None]]:
    lanes = _open[-1]
    main, side = torch.cuda.current_stream(), lanes.stream(lane)
    if since is None or since.lanes is not lanes:
        side.wait_stream(main)
    else:
        side.wait_event(since.event)
    with torch.cuda.stream(side):
        yield lambda: main.wait_stream(side)


def made_beside(lane: int, tensor: Tensor) -> None:
    """Tell `total_beside` that a lane has made a small tensor."""
    if _open:
        _open[-1].made[lane, tensor.data_ptr()] = tensor


def total_beside(lane: int, numbers: Sequence[Tensor]) -> Tensor:
    """The sum of some numbers; on a lane of a recorded graph that has made them all, which waits for nothing then."""
    if not _open or any((lane, number.data_ptr()) not in _open[-1].made for number in numbers):
        return torch.stack(list(numbers)).sum(0)
    main, side = torch.cuda.current_stream(), _open[-1].stream(lane)
    with torch.cuda.stream(side):
        total = torch.stack(list(numbers)).sum(0)
    main.wait_stream(side)
    return total
