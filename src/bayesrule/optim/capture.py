"""Work that is the same at every step, recorded once as CUDA graphs and replayed: one launch in place of dozens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from bayesrule.cuda_graphs import recording
from bayesrule.curvature import Pass
from bayesrule.errors import Unsupported
from bayesrule.optim.buffers import copy_all

WARM_UP = 2
"""Times that work is done the ordinary way first: libraries load their kernels, and rooms are made, in them."""
MOST = 32
"""Kinds of work that are kept; the one that was not done for longest makes room for a new one."""

Found = TypeVar("Found")
Replay = Callable[[], None]
Recorder = Callable[[Callable[[], None]], Replay]
Stages = Callable[[], Iterator[None]]
"""Work in parts, with a ``yield`` after each of them."""


class CudaRecorder:
    """Records the launches of some work, which is not done by that, and returns how to do them.

    Args:
        device: Where the work is done.
        generator: The noise it draws: every replay advances it as the work itself would.
    """

    def __init__(self, device: torch.device, generator: Callable[[torch.device], torch.Generator]) -> None:
        self.device, self.generator = device, generator

    def __call__(self, work: Callable[[], None]) -> Replay:
        """Record it."""
        graph, own = torch.cuda.CUDAGraph(), self.generator(self.device)
        # threads of data loaders may go on, which the default mode forbids
        with torch.cuda.device(self.device), recording(graph, [own], capture_error_mode="thread_local"):
            work()
        return graph.replay


def recorder(parameters: Iterable[Tensor], generator: Callable[[torch.device], torch.Generator]) -> Recorder:
    """For work on these parameters, which must lie on one CUDA device."""
    devices = {parameter.device for parameter in parameters}
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        raise Unsupported(
            "Only work on one CUDA device can be captured", got=f"parameters on {', '.join(sorted(map(str, devices)))}",
            remedy='Move the network, and a likelihood with parameters, by .to("cuda"); or leave out capturable.',
        )  # fmt: skip
    return CudaRecorder(devices.pop(), generator)


class Capture:
    """Recordings by the kind of work they do, and the memory they read and write.

    Work must do the same whenever its key is the same, on the same memory: what changes from step to step is copied
    into *rooms* first. A key is seen a few times before it is recorded, so that settings that change at every step are
    not recorded again and again. Work within other work that is recorded as one is a part of it, and needs no rooms.
    """

    def __init__(self, record: Recorder) -> None:
        self.record = record
        self._rooms: dict[Hashable, Tensor] = {}
        self._rates: dict[int, float] = {}
        self._known: OrderedDict[Hashable, int | list[Replay]] = OrderedDict()
        self._found: dict[Hashable, Any] = {}
        self.one = False
        """Whether what is done now is a part of work that is recorded as a whole."""
        self.forgotten = 0
        """How often all was."""

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """What is done here is a part of work that is recorded as a whole."""
        self.one = True
        try:
            yield
        finally:
            self.one = False

    def forget(self) -> None:
        """All recordings and rooms: the memory they were made for is no longer used."""
        self._rooms, self._rates, self._known, self._found = {}, {}, OrderedDict(), {}
        self.forgotten += 1

    def recorded(self, key: Hashable) -> bool:
        """Whether such work is replayed the next time."""
        return not isinstance(self._known.get(key, 0), int)

    def to_be_recorded(self, key: Hashable) -> bool:
        """Whether it is recorded then."""
        known = self._known.get(key, 0)
        return isinstance(known, int) and known >= WARM_UP

    def stages(self, key: Hashable, work: Stages, count: int) -> Iterator[None]:
        """The parts of some work, one at each ``next``: done, or replayed. What was left half done does not count."""
        if self.one:
            yield from work()
            return
        known = self._known.setdefault(key, 0)
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            self._found.pop(self._known.popitem(last=False)[0], None)
        if isinstance(known, int) and known < WARM_UP:
            for number, _ in enumerate(work(), start=1):
                if number == count:
                    self._known[key] = known + 1
                yield
            return
        if isinstance(known, int):
            parts = work()
            known = self._known[key] = [self.record(lambda: next(parts)) for _ in range(count)]
        for replay in known:
            replay()
            yield

    def do(self, key: Hashable, work: Callable[[], Found]) -> Found:
        """Work in one part, and the tensors it returns: the same ones whenever it is replayed."""
        if self.one:
            return work()

        def one() -> Iterator[None]:
            self.note(key, work())
            yield

        for _ in self.stages(key, one, 1):
            pass
        return self.noted(key)

    def note(self, key: Hashable, found: Any) -> None:
        """Keep what some work has found, which is the same tensors whenever it is replayed."""
        self._found[key] = found

    def noted(self, key: Hashable) -> Any:
        """What it was."""
        return self._found[key]

    def room(self, key: Hashable, like: Tensor) -> Tensor:
        """Memory of its own for such a tensor, the same for the same key."""
        if key not in self._rooms:
            self._rooms[key] = torch.empty_like(like, requires_grad=False)
        return self._rooms[key]

    def moved_in(self, kind: str, tensors: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """The tensors where other recordings find them: copies in their rooms."""
        return dict(tensors) if self.one else self.kept_in(kind, tensors)

    def kept_in(self, kind: str, tensors: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
        """Copies of the tensors in their rooms, for whoever reads them after the work."""
        rooms = {name: self.room((kind, name), tensor) for name, tensor in tensors.items()}
        copy_all([(rooms[name], tensor) for name, tensor in tensors.items() if rooms[name] is not tensor])
        return rooms

    def at(self, kind: str, name: Any) -> Tensor:
        """What is in a room."""
        return self._rooms[kind, name]

    def set_rate(self, index: int, value: float | Tensor, device: torch.device) -> None:
        """The step size of a param group, as it now is, for recordings to read."""
        if isinstance(value, Tensor):
            self._room_of_rate(index, device).copy_(value)
            self._rates.pop(index, None)
        elif self._rates.get(index) != value:
            self._room_of_rate(index, device).fill_(value)
            self._rates[index] = value

    def _room_of_rate(self, index: int, device: torch.device) -> Tensor:
        return self.room(("rate", index), torch.empty((), dtype=torch.float64, device=device))


def curvatures_moved_in(
    capture: Capture, curvatures: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, dict[str, Tensor]]:
    """Curvatures by group and name, in their rooms."""
    flat = {(group, name): tensor for group, found in curvatures.items() for name, tensor in found.items()}
    rooms = capture.moved_in("curvature", flat)
    return {group: {name: rooms[group, name] for name in found} for group, found in curvatures.items()}


def pass_moved_in(capture: Capture, passed: Pass) -> tuple[Pass, Hashable]:
    """A pass whose inputs and gradients are in their rooms, for each shape of a batch; and what it is like."""
    tensors: dict[tuple[int, int], Tensor] = {(index, -1): x for index, (_, x, _) in enumerate(passed.uses)}
    for column, gradients in enumerate(passed.gradients):
        tensors |= {(index, column): each for index, each in enumerate(gradients) if each is not None}
    named = {(place, tensor.shape, tensor.dtype): tensor for place, tensor in tensors.items()}
    rooms = {place: room for (place, _, _), room in capture.moved_in("pass", named).items()}
    uses = [(name, rooms[index, -1], output) for index, (name, _, output) in enumerate(passed.uses)]
    columns = [[rooms.get((index, column)) for index in range(len(uses))] for column in range(len(passed.gradients))]
    like = tuple(name for name, _, _ in uses), tuple(named)
    return Pass(uses, columns, passed.examples, passed.factor), like
