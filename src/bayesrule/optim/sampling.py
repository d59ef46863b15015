"""Draws in the weights, and messages gathered while they are there."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bayesrule.curvature import (
    Fisher,
    Layer,
    ModuleTap,
    Pass,
    Tapped,
    assemble,
    exact_cotangents,
    sampled_cotangents,
)
from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.optim.arguments import check_trainable, constructors_above
from bayesrule.optim.capture import Capture, curvatures_moved_in, pass_moved_in
from bayesrule.optim.drawing import DrawingHolder
from bayesrule.optim.intervals import check_count, due
from bayesrule.optim.local_noise import check_local, local_noise
from bayesrule.optim.messages import Gathered, Residuals
from bayesrule.optim.rule import Rule
from bayesrule.posteriors import GaussianPosterior
from bayesrule.random import NoiseSource, by_example
from bayesrule.threads import turn_of

Noise = Literal["batch", "example"]


class SamplingHolder(DrawingHolder):
    """What happens between two steps: blocks with a draw in the weights, whose messages are averaged."""

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        *,
        fisher: Fisher | None,
        fisher_samples: int,
        T_stats: int,
        noise: Noise,
        mirrored: bool,
        **options: Any,
    ) -> None:
        super().__init__(model, rule, mirrored=mirrored, **options)
        self.fisher = self._checked_fisher(fisher)
        self.fisher_samples, self.T_stats, self.noise = fisher_samples, T_stats, noise
        for name, value in (("fisher_samples", fisher_samples), ("T_stats", T_stats)):
            check_count(name, value)
        if noise not in get_args(Noise):
            raise InvalidArgument('noise is "batch" or "example"', got=repr(noise))
        if noise == "example":
            check_local(tuple(self.groups.values()), type(self).__name__)
        self._pending = Gathered()
        self._block: Gathered | None = None
        self._room: list[Tensor] = []
        self._drawn = tuple(self._posterior_names())
        self._loss_scale: float | None = None

    @contextmanager
    def sampled_params(self, *, noise: NoiseSource | None = None, loss_scale: float | None = None) -> Iterator[None]:
        """One draw in the weights for the body; the mean returns at its end, even if the body raises.

        Backward passes belong inside. Several blocks before one `step` are averaged, gradients and curvatures alike
        (several draws, or parts of a batch); each block's gradient is apart until it ends, so `zero_grad` inside clears
        that block's alone, and outside everything since the last step. A block without a backward pass is not counted.

        Args:
            noise: In place of the optimizer's own.
            loss_scale: What the loss is multiplied by (``scaler.get_scale()``); the empirical Fisher must know it.
        """
        with turn_of(self), self._with_a_draw(noise, loss_scale):
            yield

    @contextmanager
    def _with_a_draw(self, noise: NoiseSource | None, loss_scale: float | None) -> Iterator[None]:
        if self._block is not None:
            raise InvalidArgument("sampled_params inside sampled_params", remedy="End the first block before the next.")
        check_trainable({name: self.trained[name] for name in self._drawn})
        before = {name: p.grad for name, p in self.trained.items()} if self._pending.blocks else {}
        if self._pending.blocks and self._capture is not None:
            self._pending.copied()
        for parameter in self.trained.values():
            parameter.grad = None
        block = self._block = Gathered()
        drawn: list[Tensor] = [self.trained[name] for name in self._drawn]
        kept = self._room = self._room or [torch.empty_like(parameter, requires_grad=False) for parameter in drawn]
        with torch.no_grad():
            torch._foreach_copy_(kept, drawn)
        self._saved = dict(zip(self._drawn, kept, strict=True))
        finished = False
        try:
            with ExitStack() as stack:
                self._enter(stack, noise, loss_scale)
                torch.clear_autocast_cache()  # of other weights than those that are now in the parameters
                yield
                self._leave(loss_scale or 1.0)
            finished = True
        finally:
            self._saved = self._block = None
            self._drawn_by, self._split = {}, {}
            with torch.no_grad():
                torch._foreach_copy_(drawn, kept)
            torch.clear_autocast_cache()
            self._settle(block, before, finished)
        if loss_scale is not None:
            self._loss_scale = loss_scale

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The likelihood's mean negative log-likelihood; a posterior of its noise learns from the residuals."""
        if self.likelihood is None:
            raise InvalidArgument("nll needs a likelihood", remedy="Pass likelihood=… to the optimizer.")
        if isinstance(self.likelihood, GaussianGammaNoise) and self._block is not None:
            squares = self.likelihood.squared_residuals(outputs.detach(), targets)
            self._block.add_residuals(Residuals(squares.sum(), squares.numel(), outputs.shape[-1]))
        loss = self.likelihood.nll(outputs, targets)
        if self._block is not None and not self.rule.taps:  # else the pass itself tells how many examples it has
            self._warn_of_large_batch(len(targets))
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs besides the network's own ``state_dict``: bit for bit, after a `step`.

        Blocks that no step has used yet are not part of it, which is warned about.
        """
        state = super().state_dict()
        if self._pending.blocks:
            warnings.warn(
                f"This state is without the gradients and curvatures of {self._pending.blocks} blocks since the last "
                "step, but the noise they drew is used up: a run resumed from it goes on without them. Save after "
                "step(), or after zero_grad(), which drops them.",
                stacklevel=2,
            )
        return state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients; outside of `sampled_params` also the messages gathered since the last step."""
        if self._block is None:
            self._pending = Gathered()
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for parameter in self.trained.values():  # torch's own way to do so costs as much as a layer
            parameter.grad = None

    def _enter(self, stack: ExitStack, noise: NoiseSource | None, loss_scale: float | None) -> None:
        """The draw, and hooks where this step needs them."""
        stats = self.rule.taps and due(self.steps + 1, self.T_stats)
        if (stats or self.noise == "example") and "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # a compiled graph has no hooks
        with torch.no_grad(), self._full_precision():
            drawn = {n: g for n, g in self.groups.items() if not self.rule.warm_up or self._has_estimates(n)}
            if self.noise == "example":
                covariances = {n: q.covariance for n, g in drawn.items()
                               if isinstance(q := self.posterior_of(g), GaussianPosterior)}  # fmt: skip
                stack.enter_context(local_noise(self.model, drawn, covariances, noise or self._own_noise()))
            else:
                self._draw(list(drawn.values()), noise)
        if stats:
            layers = [layer for group in self.groups.values() for layer in group.layers]
            cotangents = None if self.fisher == "empirical" else self._cotangents
            replay = None if self._capture is None else partial(self._replay_pass, self._capture, layers)
            tap = ModuleTap(self.model, layers, self._receive, cotangents, loss_scale or 1.0, replay)
            stack.enter_context(tap())

    def _leave(self, loss_scale: float) -> None:
        """At the end of a body that has not raised, while the draw is still in the weights."""

    def _cotangents(self, outputs: Tensor) -> Tensor:
        if self.likelihood is None:
            raise InvalidArgument("A Fisher matrix of the model needs a likelihood", remedy='Use fisher="empirical".')
        with self._full_precision():
            if self.fisher == "exact":
                return exact_cotangents(self.likelihood, outputs)
            return sampled_cotangents(self.likelihood, outputs, by_example(self._own_noise()), self.fisher_samples)

    @torch.no_grad()
    def _receive(self, tapped: dict[str, Tapped]) -> None:
        """The curvature of one pass, group by group."""
        examples = next((each.examples for each in tapped.values()), 0)
        with self._full_precision():
            self._add(self._curvatures(tapped), tapped, examples)

    def _curvatures(self, tapped: Mapping[str, Tapped]) -> dict[str, dict[str, Tensor]]:
        """Of groups with any layer that was called; the others of their layers say nothing."""
        found = {}
        for name, group in self.groups.items():
            own = {layer.name: tapped[layer.name] for layer in group.layers if layer.name in tapped}
            if own:
                some = next(iter(own.values()))
                whole = [own.get(layer.name) or some.of_silent_layer(*layer.shape) for layer in group.layers]
                found[name] = self.rule_of(group).curvature(self.states[name], whole)
        return found

    def _add(self, curvatures: Mapping[str, Mapping[str, Tensor]], tapped: Collection[str], examples: int) -> None:
        self._warn_of_large_batch(examples)
        if self._block is not None:
            self._block.tapped |= set(tapped)
            for name, curvature in curvatures.items():
                self._block.add_curvature(name, curvature, examples)

    def _warn_of_large_batch(self, examples: int) -> None:
        if examples > self.n_data:
            warnings.warn(
                f"A batch has {examples} examples, and n_data, the number of all training examples, is {self.n_data}: "
                "the posterior will be too wide. Give len(train_dataset), not the number of batches.",
                stacklevel=3,
            )

    @torch.no_grad()
    def _replay_pass(self, capture: Capture, layers: list[Layer], passed: Pass) -> None:
        """The same, captured: for each shape of a batch."""
        if self._block is not None:
            self._block.copied()  # of an earlier pass of the block, in the rooms that this one will write to
        moved, shapes = pass_moved_in(capture, passed)
        key = ("pass", shapes, passed.examples, passed.factor, self._circumstances())
        with self._full_precision():
            found = capture.do(key, lambda: curvatures_moved_in(capture, self._curvatures(assemble(layers, moved))))
        used = {name for name, _, _ in passed.uses}
        self._add(found, [layer.name for layer in layers if not used.isdisjoint(layer.modules)], passed.examples)

    def _settle(self, block: Gathered, before: dict[str, Tensor | None], finished: bool) -> None:
        """Average a block's gradients with those of the blocks before, or forget it."""
        if finished and any(p.grad is not None for p in self.trained.values()):
            self._pending.merge(block)
            for name, parameter in self.trained.items():
                new, old = parameter.grad, before.get(name)
                if self._pending.blocks > 1 and (new is not None or old is not None):
                    zero = torch.zeros_like(parameter)
                    parameter.grad = torch.lerp(zero if old is None else old, zero if new is None else new,
                                                1 / self._pending.blocks)  # fmt: skip
        else:
            for name, parameter in self.trained.items():
                parameter.grad = before.get(name)

    def _checked_fisher(self, fisher: Fisher | None) -> Fisher:
        if fisher is None and self.likelihood is None and self.rule.taps:
            warnings.warn(
                f"{type(self).__name__} has no likelihood to sample targets from and uses the empirical Fisher of the "
                'loss. Give likelihood=…, or fisher="empirical" to say that this is meant.',
                stacklevel=3 + constructors_above(type(self), SamplingHolder),
            )
        fisher = fisher or ("sampled" if self.likelihood is not None else "empirical")
        if fisher not in get_args(Fisher):
            raise InvalidArgument('fisher is "sampled", "exact" or "empirical"', got=repr(fisher))
        if fisher != "empirical" and self.likelihood is None:
            raise InvalidArgument(f"fisher={fisher!r} needs a likelihood", remedy="Pass likelihood=….")
        return fisher
