"""From gathered messages to new means and states: what a step computes, and keeps if it is finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.optim.buffers import copy_all, differences
from bayesrule.optim.capture import Capture, curvatures_moved_in
from bayesrule.optim.intervals import check_count, due
from bayesrule.optim.messages import Alone, Exchange, Landing, Messages, Residuals, finite_check, sum_of_sizes
from bayesrule.optim.param_groups import alike
from bayesrule.optim.plain import adam_update
from bayesrule.optim.proposed_step import ProposedStep
from bayesrule.optim.rule import Message, Rule
from bayesrule.optim.sampling import SamplingHolder
from bayesrule.posteriors import GaussianPosterior


class UpdatingHolder(SamplingHolder):
    """The update, as it comes or recorded in parts."""

    def __init__(self, model: nn.Module, rule: Rule, *, T_inv: int, noise_lr: float, **options: Any) -> None:
        super().__init__(model, rule, **options)
        check_count("T_inv", T_inv)
        self.T_inv, self.noise_lr = T_inv, noise_lr
        self.exchange: Exchange = Alone()
        self._landing: Landing | None = None

    def _recordable(self) -> bool:
        """Whether the next update is work like that of others: without new inverses, and of one process."""
        new = due(self.steps + 1, self.T_inv) and (self.rule.inverts or not self.priors.fixed)
        return not new and isinstance(self.exchange, Alone)

    def _gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.trained.items() if p.grad is not None}

    def _messages(self, gradients: Mapping[str, Tensor], curvatures: Mapping[str, Mapping[str, Tensor]]) -> Messages:
        """Gradients and curvatures of all blocks, as events."""
        told, wide = self._filled(gradients)
        groups = {group.name: Message(event, curvatures.get(group.name))
                  for group, event in zip(told, self._gradient_events.of(told, wide), strict=True)}  # fmt: skip
        plain = {name: self._widened(name, gradients[name]) for name in self.plain_states if name in gradients}
        return Messages(groups, plain, self._pending.residuals)

    def _check_complete(self, gradients: Mapping[str, Tensor]) -> None:
        """Refuse a step at which a layer has a gradient but not the curvature that is due."""
        if not (self.rule.taps and due(self.steps + 1, self.T_stats)):
            return
        for layer in (layer for group in self.groups.values() for layer in group.layers):
            if layer.name not in self._pending.tapped and any(part.name in gradients for part in layer.parts):
                raise InvalidArgument(
                    f"{layer.name!r} got a gradient, but its layer was not called in a pass of the network",
                    got=layer.modules,
                    remedy="Call the network itself; name layers whose weights others read in plain=(…); "
                    "checkpoint activations with use_reentrant=False.",
                )

    def _check(self, finite: Callable[[], bool]) -> None:
        if not finite():
            wrong = [n for n, p in self.trained.items() if p.grad is not None and not bool(p.grad.isfinite().all())]
            raise InvalidArgument(
                "A gradient is not finite" if wrong else "The posterior after this step would be not finite",
                got=wrong or "finite gradients, and a curvature from gradients that were not, or whose squares are not",
                remedy="Look for NaN in the batch; if it is finite, lower lr, or clip. The blocks since the last step "
                "were dropped, and nothing was changed: go on with the next batch.",
            )  # fmt: skip

    def _apply(self, refresh: bool) -> None:
        """New means and states, all computed before any is kept, and kept if they are finite."""
        gradients, curvatures = self._gradients(), self._pending.means()
        self._check_complete(gradients)
        messages = self.exchange.messages(self._messages(gradients, curvatures))
        solves = self.rule.inverts or not self.priors.fixed
        if solves and (refresh or self._pending.curvatures):  # which may fail by itself at numbers that are not finite
            self._check(finite_check(messages.tensors()))
        if refresh and not self.priors.fixed and self.steps:
            posteriors = {n: q for n, q in self.posteriors().items() if isinstance(q, GaussianPosterior)}
            self.priors.follow(posteriors, self._prior_rate())
        moved = self._moved(messages, refresh)
        self._check(finite_check(moved.tensors(messages.groups)))
        self._learn_noise(messages.residuals)
        self._keep(moved)

    def _replay(self, capture: Capture) -> None:
        """The same, captured."""
        gradients = capture.moved_in("gradient", self._gradients())
        curvatures = curvatures_moved_in(capture, self._pending.means())
        self._check_complete(gradients)
        key = ("update", tuple(gradients), tuple(curvatures), self._circumstances())
        stages = capture.stages(key, lambda: self._stages(capture, gradients, curvatures), 3)
        next(stages)
        finite = self._finite(capture)
        next(stages)
        self._check(finite)
        self._learn_noise(self._pending.residuals)
        next(stages)

    def _finite(self, capture: Capture) -> Callable[[], bool]:
        """Starts to find out whether the messages were finite."""
        total = capture.at("total", "gradient")
        self._landing = self._landing or Landing(total)
        return self._landing.start(total)

    def _stages(
        self, capture: Capture, gradients: Mapping[str, Tensor], curvatures: Mapping[str, Mapping[str, Tensor]]
    ) -> Iterator[None]:
        messages = self._messages(gradients, curvatures)
        capture.kept_in("total", {"gradient": sum_of_sizes(messages.tensors())})
        yield
        moved = self._moved(messages, refresh=False)
        yield
        self._keep(moved)
        yield

    def _moved(self, messages: Messages, refresh: bool) -> ProposedStep:
        """What the rules make of the messages; nothing is changed yet."""
        moved: dict[str, Tensor] = {}
        states, plain_states = dict(self.states), dict(self.plain_states)
        means = {**self.trained, **self._masters}
        for names in alike(messages.groups, self._placement, self.trained):
            groups = [self.groups[name] for name in names]
            tasks = [(mean, states[group.name], messages.groups[group.name], self.priors.term(group.name))
                     for group, mean in zip(groups, self._mean_events.of(groups, means), strict=True)]  # fmt: skip
            found = self.rule_of(groups[0]).updates(tasks, lr=self.lr_of(names[0]), refresh=refresh)
            for group, (mean, states[group.name]) in zip(groups, found, strict=True):
                moved |= group.split(mean)
        for name, gradient in messages.plain.items():
            moved[name], plain_states[name] = adam_update(
                self.mean_of(name), plain_states[name], gradient, lr=self.lr_of(name)
            )  # fmt: skip
        kept = {name: value for name, value in moved.items() if self.trained[name].grad is not None}
        return ProposedStep(kept, states, plain_states)

    def _keep(self, moved: ProposedStep) -> None:
        """New means into the parameters; new states in place of the old ones, or over them where work is captured."""
        torch._foreach_copy_([self.trained[name] for name in moved.means], list(moved.means.values()))
        masters = {name: moved.means[name] for name in self._masters.keys() & moved.means.keys()}
        if self._capture is None:
            self.states, self.plain_states = moved.states, moved.plain_states
            self._masters |= {name: mean.clone() for name, mean in masters.items()}
            return
        held = [(self.states, moved.states), (self.plain_states, moved.plain_states), (self._masters, masters)]
        copy_all(pair for old, new in held for name in new for pair in differences(old[name], new[name]))

    def _prior_rate(self) -> float:
        return min(1.0, self.param_groups[0].get("beta", 0.01) * self.T_inv)

    def _learn_noise(self, residuals: Residuals | None) -> None:
        if not isinstance(self.likelihood, GaussianGammaNoise):
            return
        if residuals is None:
            raise InvalidArgument(
                "GaussianGammaNoise learns its noise from the residuals of the loss", got="no loss from opt.nll",
                remedy="Compute the loss by opt.nll(net(x), y).",
            )  # fmt: skip
        mean_square = residuals.squares / residuals.examples
        self.likelihood.update(mean_square * self.n_data, self.n_data * residuals.entries, step_size=self.noise_lr)
