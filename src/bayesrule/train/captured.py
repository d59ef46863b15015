"""A training step recorded once as a CUDA graph and replayed: one launch in place of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesrule.cuda_graphs import apart, recording
from bayesrule.errors import Unsupported
from bayesrule.nn import NegativeELBO

WARM_UP = 3
"""Steps done the ordinary way first: libraries allocate their workspaces and the optimizer its state in them."""


@dataclass
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: tuple[Tensor, ...]
    found: tuple[Tensor, ...]


class Captured:
    """A function of a batch, one graph for each shape of it.

    The function does a whole step (forward, backward, optimizer) and returns tensors. It must do the same work every
    time and read what changes from tensors. Noise comes from torch's own CUDA generator, which every replay advances:
    a seed fixes the run, and a restored generator state resumes it.

    Args:
        function: What is recorded.
        device: Where it computes.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], device: torch.device) -> None:
        if device.type != "cuda":
            raise Unsupported(
                "Only steps on a CUDA device can be captured", got=f"a model on {device}",
                remedy='Move the model and the batches by .to("cuda"), or train without capture.',
            )  # fmt: skip
        self.function, self.stream = function, torch.cuda.Stream(device)
        self._done = 0
        self._recordings: dict[tuple[torch.Size, ...], _Recording] = {}

    def __call__(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """What the function returns for the batch; read it before the next call, which writes over it."""
        self._done += 1
        if self._done <= WARM_UP:
            with apart(self.stream):
                return self.function(*batch)
        shapes = tuple(tensor.shape for tensor in batch)
        if shapes not in self._recordings:
            self._recordings[shapes] = self._record(batch)
        recording = self._recordings[shapes]
        for static, tensor in zip(recording.batch, batch, strict=True):
            static.copy_(tensor)
        recording.graph.replay()
        return recording.found

    def _record(self, batch: tuple[Tensor, ...]) -> _Recording:
        static, graph = tuple(tensor.clone() for tensor in batch), torch.cuda.CUDAGraph()
        with recording(graph):
            found = self.function(*static)
        return _Recording(graph, static, found)


class CapturedStep:
    """A step on the negative evidence lower bound; the KL's weight and the learning rate are tensors the graph reads.

    Args:
        objective: Of the model.
        optimizer: One of torch.optim made with ``capturable=True`` and a tensor as its learning rate.
    """

    def __init__(self, objective: NegativeELBO, optimizer: Optimizer) -> None:
        self.objective, self.optimizer = objective, optimizer
        self._parameters = list(objective.bnn.parameters())
        device = self._parameters[0].device
        self._replay = Captured(self._compute, device)
        _check_capturable(optimizer)
        self.weight = torch.zeros((), device=device)

    def __call__(self, inputs: tuple[Tensor, ...], targets: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Negative log-likelihood and KL of the batch before the step; read them before the next call."""
        self.weight.fill_(self.objective.annealing(step))
        nll, kl = self._replay(*inputs, targets)
        # A replay changes parameters, of which nobody is told: what was found for their values before is not theirs.
        torch.autograd.graph.increment_version(self._parameters)
        return nll, kl

    def _compute(self, *batch: Tensor) -> tuple[Tensor, ...]:
        *inputs, targets = batch
        self.optimizer.zero_grad()
        loss = self.objective.at_weight(self.objective.bnn(*inputs), targets, self.weight)
        loss.total.backward()
        self.optimizer.step()
        return loss.nll.detach(), loss.kl.detach()


def _check_capturable(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if not group.get("capturable") or not isinstance(group["lr"], Tensor):
            raise Unsupported(
                "A captured step needs an optimizer whose numbers lie on the device",
                got=f"capturable={group.get('capturable')}, lr={group['lr']!r}",
                remedy='Make it as torch.optim.Adam(…, lr=torch.tensor(lr, device="cuda"), capturable=True).',
            )
