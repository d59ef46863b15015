"""BayesBiNN: a Bernoulli posterior over binary weights, gradients through relaxed draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.errors import InvalidArgument
from bayesrule.optim.binary import BinaryOptimizer, BinaryRule, BinaryState, most_probable
from bayesrule.optim.diagonal_newton import corrected
from bayesrule.optim.rule import Message, Number, PriorTerm, check_decay, check_not_negative, no_count
from bayesrule.posteriors import BernoulliPosterior, Part


@dataclass(frozen=True)
class BayesBiNNState(BinaryState):
    """With momentum."""

    momentum: Float[Tensor, "*batch fan_in fan_out"]


@dataclass(frozen=True)
class BayesBiNNRule(BinaryRule):
    """Eq. 52; see `BayesBiNN` for the hyper-parameters."""

    temperature: float = 1e-10
    momentum: float = 0.99
    init_natural: float = 10.0
    eps: float = 1e-10

    def __post_init__(self) -> None:
        check_decay("momentum", self.momentum)
        check_not_negative(init_natural=self.init_natural, eps=self.eps)
        if not self.temperature > 0:
            raise InvalidArgument("The temperature of a relaxed draw must be positive", got=self.temperature)

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> BayesBiNNState:
        """λ of one size, with the signs of the network's own weights."""
        natural = self.init_natural * most_probable(mean)
        return BayesBiNNState(0, 0, no_count(mean, 2), natural, torch.zeros_like(mean))

    def deviation(self, state: BayesBiNNState, noise: Tensor, damping: Tensor) -> Tensor:
        """``θ − sign λ``, ``θ = tanh((λ + δ)/τ)``   [Eq. 50], over √(λ_KL/N)."""
        relaxed = torch.tanh((state.natural + half_logistic(noise)) / self.temperature)
        return (relaxed - most_probable(state.natural)) / damping.sqrt()

    def slope(self, state: BayesBiNNState, noise: Tensor) -> Tensor:
        """``s = (1 − θ² + ε)/(τ (1 − tanh²λ + ε))``   [Eq. 51; ε as in Meng et al. 2020]."""
        relaxed = _log_sech_square((state.natural + half_logistic(noise)) / self.temperature)
        certain = _log_sech_square(state.natural)
        if self.eps:
            floor = torch.full_like(certain, math.log(self.eps))
            relaxed, certain = torch.logaddexp(relaxed, floor), torch.logaddexp(certain, floor)
        return (relaxed - certain - math.log(self.temperature)).exp()

    def posterior(
        self, mean: Tensor, state: BayesBiNNState, damping: Tensor, scale: Number, parts: tuple[Part, ...] = ()
    ) -> BernoulliPosterior:
        """``q(w) ∝ exp(λw)``."""
        return BernoulliPosterior(state.natural, 2, parts)

    def update(
        self, mean: Tensor, state: BayesBiNNState, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, BayesBiNNState]:
        """``λ ← (1−ρ)λ − ρ (N/λ_KL) ∇_μ E[ℓ]``   [Eq. 49], the gradient averaged over steps."""
        momentum = torch.lerp(state.momentum, message.gradient, 1 - self.momentum)
        target = -corrected(momentum, self.momentum, state.steps + 1) / prior.damping
        natural = state.natural + lr * (target - state.natural)
        state = BayesBiNNState(state.steps + 1, 0, state.limited, natural, momentum)
        return most_probable(natural), state


class BayesBiNN(BinaryOptimizer):
    """Binary weights with a Bernoulli posterior, learned by natural gradients at relaxed draws.

    ``λ ← (1−ρ)λ − ρ (N/λ_KL) s∘∇ℓ(θ)`` with ``θ = tanh((λ + δ)/τ)``: the straight-through estimator with noise, a
    temperature and the forgetting that an entropy brings. Predictions (`br.predict`) are at draws of ±1; the network's
    own weights are ``sign λ``.

    Args:
        model: The network; normalise after its binary layers (`nn.BatchNorm1d`, …).
        n_data: N, the number of training examples.
        lr: ρ.
        temperature: τ of the relaxation. At the default, of Meng et al. (2020) as the others are, draws are ±1 and ε
            alone makes the slope, ``s = 1/(1 − tanh²λ + ε)``.
        momentum: Decay of the gradient's average.
        init_natural: Size of λ at the start; the signs are those of the network's weights.
        eps: What keeps s finite where a weight is all but certain; 0 for the equation as printed.
        **options: likelihood, kl_weight, plain, plain_lr, param_groups, seed.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        n_data: int,
        lr: float = 3e-4,
        temperature: float = 1e-10,
        momentum: float = 0.99,
        init_natural: float = 10.0,
        eps: float = 1e-10,
        **options: Any,
    ) -> None:
        rule = BayesBiNNRule(temperature, momentum, init_natural, eps)
        super().__init__(model, rule, n_data=n_data, lr=lr, **options)


def half_logistic(normal: Tensor) -> Tensor:
    """``δ = ½ log(u/(1−u))`` for the uniform ``u = Φ(ε)`` of standard normal noise   [Eq. 50], also in the tails."""
    tail = 0.5 * torch.special.erfc(normal.abs() * math.sqrt(0.5))
    return 0.5 * normal.sign() * (torch.log1p(-tail) - tail.log())


def _log_sech_square(x: Tensor) -> Tensor:
    """``log(1 − tanh²x)``, also where tanh x rounds to 1."""
    size = x.abs()
    return 2 * (math.log(2) - size - F.softplus(-2 * size))
