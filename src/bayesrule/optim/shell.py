"""The torch optimizer around a rule: the step from gathered messages to new means; the mathematics is the rule's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.curvature import Fisher
from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import GaussianGammaNoise, Likelihood
from bayesrule.optim.arguments import check_known, check_numbers
from bayesrule.optim.buffers import copy_all, differences
from bayesrule.optim.capture import Capture, curvatures_moved_in
from bayesrule.optim.captured_steps import CapturedSteps
from bayesrule.optim.intervals import check_count, due
from bayesrule.optim.messages import Alone, Exchange, Gathered, Landing, Messages, Residuals, finite_check, sum_of_sizes
from bayesrule.optim.param_groups import alike
from bayesrule.optim.plain import adam_update
from bayesrule.optim.proposed_step import ProposedStep
from bayesrule.optim.rule import Message, Rule
from bayesrule.optim.sampling import Noise, SamplingHolder
from bayesrule.posteriors import GaussianPosterior
from bayesrule.priors import Normal, Prior
from bayesrule.threads import in_turn


class PosteriorOptimizer(SamplingHolder):
    """An optimizer that holds a posterior over the weights; see `NoisyKFAC` for an example of its use.

    Args:
        model: The network. The loss is the mean negative log-likelihood of the batch's examples, without the prior.
        rule: The algorithm.
        n_data: N, the number of training examples.
        lr: Step size.
        prior: Of the weights that have a posterior. `LearnedNormal` learns its scale.
        likelihood: What targets are sampled from, and what `br.predict` uses by default. One with a posterior over its
            noise (`GaussianGammaNoise`) is updated at each step, from the losses that `nll` computed.
        kl_weight: λ of Eq. 1; below 1 the posterior is sharper.
        fisher: ``"sampled"``: gradients of targets sampled from the likelihood. ``"exact"``: averaged over all targets,
            at one backward pass for each output. ``"empirical"``: of the loss itself. By default sampled, and
            empirical, with a warning, where no likelihood is given.
        fisher_samples: Targets sampled for each example.
        T_stats: Steps between curvatures.
        T_inv: Steps between inverses. Both intervals grow by doubling from 1 at the start.
        noise: One draw of the weights for the ``"batch"``, or one for each ``"example"``, as noise on layers' outputs.
        mirrored: Whether every second draw is the one before with the other sign of its deviation: half the cost of
            drawing, and deviations that cancel over two steps; ignored for draws of each example.
        noise_lr: Step size of the update of the likelihood's noise posterior.
        plain: Modules or parameters to be trained without a posterior, by Adam, as other layers are (see `plan`).
        plain_lr: Adam's step size for them.
        param_groups: As torch's, also with modules or names, for parameters with options of their own (``lr``, or the
            rule's).
        seed: Of the optimizer's own noise; by default drawn from torch's generator.
        capturable: On a CUDA device, record draws and updates as CUDA graphs and replay them, where a step is the same
            work as others before: the same numbers, from fewer launches. Steps with new inverses are done as they come.
    """

    found_inf: Tensor
    grad_scale: Tensor | None
    _step_supports_amp_scaling = True  # gradient scaling then leaves it to step() to skip, which drops the messages

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        *,
        n_data: int,
        lr: float,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        kl_weight: float = 1.0,
        fisher: Fisher | None = None,
        fisher_samples: int = 1,
        T_stats: int = 1,
        T_inv: int = 1,
        noise: Noise = "batch",
        mirrored: bool = False,
        noise_lr: float = 0.01,
        plain: Collection[str] = (),
        plain_lr: float = 1e-3,
        param_groups: Sequence[Mapping[str, Any]] = (),
        seed: int | None = None,
        capturable: bool = False,
        **unknown: Any,
    ) -> None:
        check_known(type(self), unknown, self.left_out)
        check_numbers(n_data, lr, plain_lr, kl_weight, noise_lr)
        super().__init__(
            model, rule, n_data=n_data, lr=lr, prior=Normal(1.0) if prior is None else prior,
            likelihood=likelihood, kl_weight=kl_weight,
            fisher=fisher, fisher_samples=fisher_samples, T_stats=T_stats, noise=noise, mirrored=mirrored,
            plain=plain, plain_lr=plain_lr, param_groups=param_groups, seed=seed, capturable=capturable,
        )  # fmt: skip
        check_count("T_inv", T_inv)
        self.T_inv, self.noise_lr = T_inv, noise_lr
        self.exchange: Exchange = Alone()
        self._landing: Landing | None = None
        self._end: Callable[[], None] | None = None
        """Of a step that is recorded as a whole."""

    def captured(self, loss: Callable[..., Tensor], clip: Callable[[], object] | None = None) -> CapturedSteps:
        """Whole steps, recorded as CUDA graphs: a function of a batch that does one and returns the loss at its draw.

        It does what these lines do, with the same numbers, at a fraction of their time for a small network:

            with opt.sampled_params():
                opt.zero_grad()
                value = loss(*batch)
                value.backward()
            clip()
            opt.step()

        Args:
            loss: Of the tensors of a batch; it must do the same work for every batch of one shape.
            clip: Of the gradients that are then in ``.grad``, by operations on the device; by default nothing.
        """
        if self._capture is None:
            raise InvalidArgument(
                "Only an optimizer with capturable=True records steps", got="capturable=False",
                remedy=f"Make it as {type(self).__name__}(…, capturable=True), of a network on a CUDA device.",
            )  # fmt: skip
        return CapturedSteps(self, self._capture, loss, clip)

    @torch.no_grad()
    @in_turn
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update from the messages of the blocks since the last step; a closure is evaluated at a draw first.

        A step that is refused drops these blocks and changes nothing else: the next one is from the blocks after it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad(), self.sampled_params():
                loss = closure()
        if self._block is not None or not self._pending.blocks:
            raise InvalidArgument(
                "step() follows a block that called backward()",
                got="no gradient from sampled_params" if self._block is None else "a block that has not ended",
                remedy="with opt.sampled_params(): opt.zero_grad(); loss_fn(net(x), y).backward()",
            )
        try:
            self._step()
        except Exception:
            self.zero_grad()  # else the same blocks would be refused for ever
            for name in ("found_inf", "grad_scale"):  # which the scaler removes only after a step that returns
                self.__dict__.pop(name, None)
            raise
        finally:
            self._pending, self._loss_scale, self._end = Gathered(), None, None
        return loss

    def _step(self) -> None:
        if self._overflowed():
            self.skipped_steps += 1
            return
        with self._full_precision():
            self._set_rates()
            if self._end is not None:
                self._end()
            elif self._capture is None or not self._recordable():
                self._apply(due(self.steps + 1, self.T_inv))
            else:
                self._replay(self._capture)
        self.steps += 1

    def _recordable(self) -> bool:
        """Whether the next update is work like that of others: without new inverses, and of one process."""
        new = due(self.steps + 1, self.T_inv) and (self.rule.inverts or not self.priors.fixed)
        return not new and isinstance(self.exchange, Alone)

    def _overflowed(self) -> bool:
        """Whether gradient scaling found infinities; if not, gradients are brought back to their scale."""
        found, scale = self.__dict__.get("found_inf"), self.__dict__.get("grad_scale")
        if found is None:
            return False
        own = self.rule.from_draws or (self.fisher == "empirical" and self.rule.taps)
        if own and self._loss_scale is None:
            raise InvalidArgument(
                "The curvature is made of the loss's own gradients, which a gradient scaler has scaled",
                remedy="with opt.sampled_params(loss_scale=scaler.get_scale()): …",
            )
        overflow = self.exchange.any(bool(found))
        if scale is not None and not overflow:
            for parameter in self.trained.values():
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
        return overflow

    def _set_rates(self) -> None:
        if self._capture is not None:
            device = next(iter(self.trained.values())).device
            for index, options in enumerate(self.param_groups):
                self._capture.set_rate(index, options["lr"], device)

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
