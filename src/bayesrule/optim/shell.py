"""The torch optimizer around a rule: what a user calls; the mathematics is the rule's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.curvature import Fisher
from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import Likelihood
from bayesrule.optim.arguments import check_known, check_numbers
from bayesrule.optim.captured_steps import CapturedSteps
from bayesrule.optim.intervals import due
from bayesrule.optim.messages import Gathered
from bayesrule.optim.rule import Rule
from bayesrule.optim.sampling import Noise
from bayesrule.optim.updating import UpdatingHolder
from bayesrule.priors import Normal, Prior
from bayesrule.threads import in_turn


class PosteriorOptimizer(UpdatingHolder):
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
            fisher=fisher, fisher_samples=fisher_samples, T_stats=T_stats, T_inv=T_inv, noise=noise,
            mirrored=mirrored, noise_lr=noise_lr,
            plain=plain, plain_lr=plain_lr, param_groups=param_groups, seed=seed, capturable=capturable,
        )  # fmt: skip
        self._end: Callable[[], None] | None = None
        """Of a step that is recorded as a whole."""

    def captured(self, loss: Callable[..., Tensor], clip: Callable[[], object] | None = None) -> CapturedSteps:
        """Whole steps, recorded as CUDA graphs: a function of a batch that does one and returns the loss at its draw.

        Make it once, before the loop. It does what these lines do, with the same numbers, at a fraction of their time
        for a small network:

            with opt.sampled_params():
                opt.zero_grad()
                value = loss(*batch)
                value.backward()
            clip()
            opt.step()

        The third step of a kind (of one shape of batch, with or without curvature, …) is recorded; a loss that cannot
        be is refused there. Python's own work in it is then no longer done, and ``.grad`` is memory of the recording.

        Args:
            loss: One number, of the tensors of a batch; it must do the same work for every batch of one shape, all of
                it on the device. Tensors that it reads besides, buffers among them, are changed in place if at all.
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
        self._check_blocks()
        try:
            self._step()
        except Exception:
            self.zero_grad()  # else the same blocks would be refused for ever
            for name in ("found_inf", "grad_scale"):  # which the scaler removes only after a step that returns
                self.__dict__.pop(name, None)
            raise
        finally:
            self._pending, self._loss_scale = Gathered(), None
            torch.clear_autocast_cache()  # of the means before
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

    def _check_blocks(self) -> None:
        if self._block is not None or not self._pending.blocks:
            raise InvalidArgument(
                "step() follows a block that called backward()",
                got="no gradient from sampled_params" if self._block is None else "a block that has not ended",
                remedy="with opt.sampled_params(): opt.zero_grad(); loss_fn(net(x), y).backward()",
            )

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
