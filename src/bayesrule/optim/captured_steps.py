"""Whole steps of an optimizer that holds a posterior, recorded: two launches in place of a few hundred."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, nullcontext
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


class CapturedSteps:
    """See `PosteriorOptimizer.captured`.

    One recording has the draw, the pass, its gradients and the new values; they are kept by another, once all
    gradients are known to be finite. Steps that are not like others (new inverses, several processes, a likelihood
    whose noise is learned, blocks before this one) are done in parts.
    """

    def __init__(
        self,
        optimizer: PosteriorOptimizer,
        capture: Capture,
        loss: Callable[..., Tensor],
        clip: Callable[[], object] | None = None,
    ) -> None:
        self.optimizer, self.loss, self.clip = optimizer, loss, clip
        self._capture = capture
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

    def _pass(self, batch: tuple[Tensor, ...]) -> Tensor:
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
    def _recorded(self, batch: tuple[Tensor, ...]) -> Tensor:
        optimizer, capture = self.optimizer, self._capture
        optimizer._set_rates()
        rooms = capture.moved_in("batch", {(index, x.shape, x.dtype): x for index, x in enumerate(batch)})
        key = "step", self, tuple(rooms), self._circumstances()
        stages = capture.stages(key, lambda: self._stages(key, tuple(rooms.values())), 2)
        try:
            next(stages)
        except Exception as error:
            optimizer.zero_grad()
            if "captur" not in str(error):
                raise
            raise Unsupported(
                "This step cannot be recorded", got=str(error).splitlines()[0],
                remedy="The loss must do the same work for every batch, all of it on the device: no .item(), no branch "
                "on values. Or do the lines that PosteriorOptimizer.captured shows, with capturable=True.",
            ) from error  # fmt: skip
        loss, gradients, optimizer._mirror = capture.noted(key)
        for name, parameter in optimizer.trained.items():
            parameter.grad = gradients.get(name)
        finite = optimizer._finite(capture)

        def end() -> None:
            optimizer._check(finite)
            next(stages)

        optimizer._pending, optimizer._end = Gathered(blocks=1), end
        optimizer.step()
        # A replay changes parameters, of which nobody is told: what was found for their values before is not theirs.
        torch.autograd.graph.increment_version(list(optimizer.trained.values()))
        return loss.clone()

    def _stages(self, key: Hashable, batch: tuple[Tensor, ...]) -> Iterator[None]:
        optimizer, capture = self.optimizer, self._capture
        with self._stream(), capture.as_one():
            loss, gradients = self._pass(batch), optimizer._gradients()
            optimizer._check_complete(gradients)
            with optimizer._full_precision():
                update = optimizer._stages(capture, gradients, optimizer._pending.means())
                next(update)
                next(update)
            capture.note(key, (loss, gradients, dict(optimizer._mirror)))
        yield
        next(update)
        yield

    def _stream(self) -> AbstractContextManager[Any]:
        """One of its own for steps that precede a recording, which has another."""
        if self._beside is None or torch.cuda.is_current_stream_capturing():
            return nullcontext()
        return apart(self._beside)

    def _circumstances(self) -> Hashable:
        """What a step does beside computing with what lies in its rooms."""
        optimizer = self.optimizer
        flags = (*(module.training for module in optimizer.model.modules()),
                 *(parameter.requires_grad for parameter in optimizer.trained.values()))  # fmt: skip
        curvature = optimizer.rule.taps and due(optimizer.steps + 1, optimizer.T_stats)
        known = tuple(name for name in optimizer.groups if not optimizer.rule.warm_up or optimizer._has_estimates(name))
        kind = next(iter(optimizer.trained.values())).device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return flags, curvature, known, tuple(optimizer._mirror), precision, optimizer._circumstances()

    def _check(self, batch: tuple[Any, ...]) -> None:
        device = next(iter(self.optimizer.trained.values())).device
        for index, each in enumerate(batch):
            if not isinstance(each, Tensor) or each.device != device:
                raise InvalidArgument(
                    f"A recorded step takes the tensors of a batch, on {device}",
                    got=f"{each.device if isinstance(each, Tensor) else type(each).__name__} as number {index}",
                    remedy="Bring them there: step(x.to(device), y.to(device)).",
                )
