"""Whole steps of an optimizer that holds a posterior, recorded: three launches in place of a few hundred."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayesrule.cuda_graphs import apart
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.optim.capture import Capture
from bayesrule.optim.intervals import due
from bayesrule.optim.messages import Gathered
from bayesrule.threads import turn_of

if TYPE_CHECKING:
    from bayesrule.optim.shell import PosteriorOptimizer

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Step:
    """What a recorded step reads and finds: the same memory whenever it is replayed."""

    batch: Batch
    loss: Tensor
    gradients: dict[str, Tensor]
    mirror: dict[str, Tensor]


class CapturedSteps:
    """See `PosteriorOptimizer.captured`.

    One recording has the draw, the pass and its gradients; one, the new values, after hooks have seen the gradients;
    and one keeps them, once all gradients are known to be finite. Steps that are not like others (with new inverses, of
    one of several processes, with a likelihood whose noise is learned, after blocks of their own) are done in parts:
    the loss as it is written, and recordings of the rest where there are any.
    """

    def __init__(
        self,
        optimizer: PosteriorOptimizer,
        parts: Capture,
        loss: Callable[..., Tensor],
        clip: Callable[[], object] | None,
    ) -> None:
        self.optimizer, self.loss, self.clip = optimizer, loss, clip
        self._parts, self._whole, self._made = parts, Capture(parts.record), parts.forgotten
        device = next(iter(optimizer.trained.values())).device
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, *batch: Any) -> Tensor:
        """One step; the loss at the draw, before it."""
        self._check(batch)
        with turn_of(self.optimizer):
            if self._alike():
                return self._recorded(batch)
            loss = self._pass(batch)
            self.optimizer.step()
        return loss

    def _pass(self, batch: Batch) -> Tensor:
        with torch.enable_grad(), self.optimizer.sampled_params():
            self.optimizer.zero_grad()
            loss = self.loss(*batch)
            loss.backward()
        if self.clip is not None:
            self.clip()
        return loss.detach()

    def _alike(self) -> bool:
        """Whether the next step is work like that of others."""
        optimizer = self.optimizer
        apart_from_others = optimizer._block is not None or optimizer._pending.blocks or optimizer.source is not None
        learns_noise = isinstance(optimizer.likelihood, GaussianGammaNoise)
        return optimizer._recordable() and not (apart_from_others or learns_noise)

    @torch.no_grad()
    def _recorded(self, batch: Batch) -> Tensor:
        optimizer, whole = self.optimizer, self._whole
        if self._made != self._parts.forgotten:
            whole.forget()
            self._made = self._parts.forgotten
        optimizer._set_rates()
        key = tuple((x.shape, x.dtype, x.requires_grad) for x in batch), self._circumstances()
        recording = whole.to_be_recorded(key)
        if recording:
            batch = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in batch)
        elif whole.recorded(key):
            for static, x in zip(whole.noted(key).batch, batch, strict=True):
                static.copy_(x)
        stages = whole.stages(key, lambda: self._stages(key, batch), 3)
        self._begin(stages, recording)
        step: _Step = whole.noted(key)
        optimizer._mirror = dict(step.mirror)
        for name, parameter in optimizer.trained.items():
            parameter.grad = step.gradients.get(name)
        try:
            optimizer._pending, optimizer._end = Gathered(blocks=1), lambda: self._end(stages, step)
            optimizer.step()
        finally:
            optimizer._pending, optimizer._end = Gathered(), None
        # A replay changes parameters, of which nobody is told: what was found for their values before is not theirs.
        torch.autograd.graph.increment_version(list(optimizer.trained.values()))
        return step.loss.clone()

    def _begin(self, stages: Iterator[None], recording: bool) -> None:
        """The first stage, which calls the user's loss."""
        try:
            next(stages)
        except BaseException as error:
            self.optimizer.zero_grad()
            if recording:
                self.optimizer._mirror = {}  # a draw that was recorded, and not made
            if not (recording and isinstance(error, RuntimeError) and "captur" in str(error)):
                raise
            raise Unsupported(
                "This step cannot be recorded", got=str(error).splitlines()[0],
                remedy="The loss must do the same work for every batch, all of it on the device: no .item(), no branch "
                "on values; and no loss of an earlier block may be kept (keep loss.detach()). Or do the lines that "
                "PosteriorOptimizer.captured shows, with capturable=True.",
            ) from error  # fmt: skip

    def _end(self, stages: Iterator[None], step: _Step) -> None:
        """The others, within the optimizer's own step: hooks may have changed gradients."""
        optimizer = self.optimizer
        for name, gradient in step.gradients.items():
            given = optimizer.trained[name].grad
            if given is None:
                gradient.zero_()
            elif given is not gradient:
                gradient.copy_(given)
        next(stages)
        optimizer._check(optimizer._finite(self._parts))
        next(stages)

    def _stages(self, key: Hashable, batch: Batch) -> Iterator[None]:
        optimizer, parts = self.optimizer, self._parts
        with self._stream(), parts.as_one():
            loss = self._pass(batch)
            optimizer._check_blocks()
            gradients, curvatures = optimizer._gradients(), optimizer._pending.means()
            optimizer._check_complete(gradients)
            self._whole.note(key, _Step(batch, loss, gradients, dict(optimizer._mirror)))
        yield
        with parts.as_one(), optimizer._full_precision():
            update = optimizer._stages(parts, gradients, curvatures)
            next(update)
            next(update)
        yield
        next(update)
        yield

    def _stream(self) -> AbstractContextManager[Any]:
        """One of its own for steps that precede a recording, which has another."""
        if self._beside is None or torch.cuda.is_current_stream_capturing():
            return nullcontext()
        return apart(self._beside)

    def _circumstances(self) -> Hashable:
        """What a step does beside computing with what lies in its batch's memory."""
        optimizer = self.optimizer
        modes = tuple(module.training for module in optimizer.model.modules())
        trained = tuple(parameter.requires_grad for parameter in optimizer.trained.values())
        buffers = tuple(buffer.data_ptr() for buffer in optimizer.model.buffers())
        options = optimizer.mirrored, optimizer.noise, optimizer.fisher, optimizer.fisher_samples
        curvature = optimizer.rule.taps and due(optimizer.steps + 1, optimizer.T_stats)
        known = tuple(name for name in optimizer.groups if not optimizer.rule.warm_up or optimizer._has_estimates(name))
        kind = next(iter(optimizer.trained.values())).device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        drawn = tuple(optimizer._mirror)
        return modes, trained, buffers, options, curvature, known, precision, drawn, optimizer._circumstances()

    def _check(self, batch: tuple[Any, ...]) -> None:
        device = next(iter(self.optimizer.trained.values())).device
        for index, each in enumerate(batch):
            if not isinstance(each, Tensor) or each.device != device:
                raise InvalidArgument(
                    f"A recorded step takes the tensors of a batch, on {device}",
                    got=f"{each.device if isinstance(each, Tensor) else type(each).__name__} as number {index}",
                    remedy="Bring them there: step(x.to(device), y.to(device)).",
                )
