"""What a CUDA graph does, on any device: operations are recorded with the memory they use, and done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesrule.optim import capture, holder

LOOKS = ("_local_scalar_dense", "equal", "is_nonzero")
"""Operations that look at values, which a graph cannot."""


@dataclass
class Tape(TorchDispatchMode):
    """Operations in order, and what they returned: replayed, their results go to the same memory.

    Unlike a graph's recording, that of a tape does the work, on copies that are put back at the end.
    """

    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Tensor]]] = field(default_factory=list)
    before: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in LOOKS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        for tensor in given:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.before:
                whole = torch.as_strided(tensor.detach(), (storage.nbytes() // tensor.itemsize,), (1,), 0)
                self.before[storage.data_ptr()] = whole, whole.clone()
        found = func(*args, **kwargs)
        owned = {tensor.untyped_storage().data_ptr() for tensor in given}
        results = [each for each in tree_leaves(found) if isinstance(each, Tensor)]
        fresh = [each for each in results if each.untyped_storage().data_ptr() not in owned]
        self.calls.append((func, args, kwargs, fresh))
        return found

    def replay(self) -> None:
        for func, args, kwargs, fresh in self.calls:
            found = func(*args, **kwargs)
            if fresh:
                for room, tensor in zip(fresh, (t for t in tree_leaves(found) if isinstance(t, Tensor)), strict=True):
                    room.copy_(tensor)


@dataclass
class TapeRecorder:
    """In place of `bayesrule.optim.capture.CudaRecorder`; counts what it recorded and replayed."""

    generator: torch.Generator
    recorded: int = 0
    replayed: int = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        tape, state = Tape(), self.generator.get_state()
        try:
            with tape:
                work()
        finally:  # nothing has happened, whether it could be recorded or not
            for whole, value in tape.before.values():
                whole.copy_(value)
            self.generator.set_state(state)

        def replay() -> None:
            self.replayed += 1
            with torch.no_grad(), torch.autocast("cpu", enabled=False):  # which has cast what was recorded
                tape.replay()

        return replay


def tape_recorders(monkeypatch: pytest.MonkeyPatch) -> list[TapeRecorder]:
    """Tapes in place of graphs, in optimizers that are made from now on; all that are made."""
    made: list[TapeRecorder] = []

    def recorder(parameters: Any, generator: Callable[[torch.device], torch.Generator]) -> capture.Recorder:
        def record(work: Callable[[], None]) -> capture.Replay:
            made.append(TapeRecorder(generator(torch.device("cpu"))))
            return made[-1](work)

        return record

    monkeypatch.setattr(holder, "recorder", recorder)
    return made
