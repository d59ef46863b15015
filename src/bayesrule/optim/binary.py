"""Binary weights, −1 or +1, trained through natural parameters: what BayesBiNN and STE have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.curvature import Tapped
from bayesrule.errors import Unsupported
from bayesrule.optim.arguments import check_network
from bayesrule.optim.diagonal_newton import leave_out
from bayesrule.optim.rule import Number, Rule, State
from bayesrule.optim.shell import PosteriorOptimizer
from bayesrule.posteriors import CovarianceOperator
from bayesrule.priors import Normal
from bayesrule.random import Law, NoiseSource

LEFT_OUT = ("prior", "fisher", "fisher_samples", "T_stats", "T_inv", "noise", "mirrored", "warm_up", "max_kl")
"""Options of optimizers with Gaussian posteriors."""


@dataclass(frozen=True)
class BinaryState(State):
    """λ, half the log-odds of a weight of +1 (for STE, its latent weight)."""

    natural: Float[Tensor, "*batch fan_in fan_out"]


class BinaryRule(Rule):
    """An algorithm for binary weights: the network's own weights are the most probable ones, ``sign λ``.

    The shell's prior is ``N(0, 1)``, so that the damping γ is λ_KL/N, the weight of the entropy for one example.
    """

    warm_up = False
    inverts = False

    @property
    def taps(self) -> bool:
        """None."""
        return False

    @abstractmethod
    def slope(self, state: Any, noise: Tensor) -> Tensor:
        """``dθ/dμ`` at the draw of this noise: the loss's gradient in θ times it is that in μ   [Eq. 51]."""

    def curvature(self, state: Any, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """Refused."""
        raise Unsupported("Binary weights have no curvature", remedy="Use the gradient.")

    def covariance(self, state: Any, damping: Tensor, scale: Number) -> CovarianceOperator:
        """Refused."""
        raise Unsupported("Binary weights have no Gaussian covariance", remedy="Use posterior(…).variance.")


class BinaryOptimizer(PosteriorOptimizer):
    """The constructor of optimizers with binary weights, and gradients in μ.

    Weights of Linear and Conv2d layers become −1 or +1, from the start; biases and all other parameters are trained by
    Adam. Between a block and the step, ``.grad`` of a binary weight is the gradient with respect to its expectation μ.
    """

    left_out = LEFT_OUT

    def __init__(self, model: nn.Module, rule: BinaryRule, *, plain: Sequence[str] = (), **options: Any) -> None:
        check_network(type(self), model)
        leave_out(type(self).__name__, options, self.left_out, "has binary weights, and a uniform prior on them")
        unique = list(dict.fromkeys((*plain, *_biases(model))))
        super().__init__(model, rule, prior=Normal(1.0), plain=unique, **options)
        with torch.no_grad():
            for name, group in self.groups.items():
                for part, value in group.split(most_probable(self.states[name].natural)).items():
                    self.trained[part].copy_(value)
                    if part in self._masters:
                        self._masters[part] = value.clone()

    @contextmanager
    def sampled_params(self, *, noise: NoiseSource | None = None, loss_scale: float | None = None) -> Iterator[None]:
        """One draw in the weights for the body; see `PosteriorOptimizer.sampled_params`."""
        drawn: list[Tensor] = []
        source = noise or self._own_noise()

        def recording(shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
            drawn.append(source(shape, law, like))
            return drawn[-1]

        with super().sampled_params(noise=recording, loss_scale=loss_scale):
            yield
            self._to_expectations(drawn)

    @torch.no_grad()
    def _to_expectations(self, drawn: Sequence[Tensor]) -> None:
        for (name, group), noise in zip(self.groups.items(), drawn, strict=True):
            rule = self.rule_of(group)
            if not isinstance(rule, BinaryRule):
                continue
            for part, slope in group.split(rule.slope(self.states[name], noise)).items():
                gradient = self.trained[part].grad
                if gradient is not None:
                    gradient.mul_(slope)


def most_probable(natural: Tensor) -> Tensor:
    """``sign λ``, and +1 at zero."""
    return torch.where(natural >= 0, 1.0, -1.0).to(natural.dtype)


def _biases(model: nn.Module) -> list[str]:
    model = model._modules.get("_orig_mod") or model  # of a compiled network
    kinds = (nn.Linear, nn.Conv2d)
    own = {id(module.bias) for module in model.modules() if isinstance(module, kinds) and module.bias is not None}
    return [name for name, parameter in model.named_parameters() if id(parameter) in own]
