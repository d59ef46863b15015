"""Steps of replicas on a CUDA device, captured as graphs: their state stays in the same buffers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesrule.optim.rule import State
from bayesrule.train.captured import Captured
from bayesrule.train.replicas_noise import Batch
from bayesrule.train.replicas_step import Program, ReplicaState, Work, worked


class CapturedSteps:
    """Steps that write their results over the state they started from.

    A step without inverses is one graph for each size of batch. Those with inverses are done the ordinary way, one in
    ``T_inv``: decompositions look at their success. Counts of steps are numbers on the device, read by the graph.

    Args:
        program: What all steps share.
        state: To start from; it is copied.
        lr: Step sizes of the replicas; only their shape matters here.
    """

    def __init__(self, program: Program, state: ReplicaState, lr: Tensor) -> None:
        self.program, self.state = program, buffered(state)
        self.lr = lr.clone(memory_format=torch.contiguous_format)
        self._replays: dict[Work, Captured] = {}

    def __call__(self, batch: Batch) -> None:
        """The next step."""
        work = Work.due(self.program, self.state.steps)
        tensors = (batch.x, batch.y, batch.weight_noise, batch.target_noise)
        if work.refresh:
            self.advance(work, *tensors)
        else:
            self._replay_of(work)(*tensors)
        self.state = replace(self.state, steps=self.state.steps + 1)

    def advance(self, work: Work, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What is captured: one step, and its results into the buffers."""
        after = worked(self.program, self.state, Batch(*tensors), self.lr, work)
        pairs = zip(leaves(self.state), leaves(after), strict=True)
        changed = [(old, new) for old, new in pairs if old is not new]
        for dtype in {old.dtype for old, _ in changed}:
            same = [pair for pair in changed if pair[0].dtype == dtype]
            torch._foreach_copy_([old for old, _ in same], [new for _, new in same])
        return ()

    def _replay_of(self, work: Work) -> Captured:
        if work not in self._replays:
            self._replays[work] = Captured(partial(self.advance, work), self.lr.device)
        return self._replays[work]


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors in a state, in the order of its fields."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from leaves(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from leaves(getattr(value, each.name))


def buffered(value: Any) -> Any:
    """A copy whose tensors have their own memory, and whose counts of steps are numbers on the device."""
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    if isinstance(value, tuple):
        return tuple(buffered(each) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {each.name: buffered(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, State):
        counts = {"steps": value.steps, "estimates": value.estimates}
        device = value.limited.device
        changes |= {name: torch.as_tensor(count, dtype=torch.float64, device=device) for name, count in counts.items()}
    return replace(value, **changes)
