"""Steps of replicas on a CUDA device, captured as graphs: their state stays in the same buffers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bayesrule.optim.buffers import buffered, copy_all, differences
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
        copy_all(differences(self.state, after))
        return ()

    def _replay_of(self, work: Work) -> Captured:
        if work not in self._replays:
            self._replays[work] = Captured(partial(self.advance, work), self.lr.device)
        return self._replays[work]
