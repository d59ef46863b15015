"""Bayes by backprop as a rule: a factorized Gaussian whose mean and log-std are moved by Adam."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.curvature import Tapped
from bayesrule.errors import Unsupported
from bayesrule.optim.rule import Message, Number, PriorTerm, Rule, State, no_count
from bayesrule.posteriors import DiagonalCovariance


@dataclass(frozen=True)
class BayesByBackpropState(State):
    """Log-standard deviations over √(λ/N), and Adam's moments of the mean and of them, stacked in front."""

    log_std: Float[Tensor, "*batch fan_in fan_out"]
    first: Float[Tensor, "two *batch fan_in fan_out"]
    second: Float[Tensor, "two *batch fan_in fan_out"]


@dataclass(frozen=True)
class BayesByBackpropRule(Rule):
    """``∇_μ = g + γμ`` and ``∇_{log σ} = g∘ε∘σ + (λ/N)(σ²/η − 1)``, by Adam   [Blundell et al. 2015].

    The message's curvature is the gradient along the noise, ``g∘ε``, under the name ``spread``. Standard deviations
    are kept in units of ``√(λ/N)``, in which they are ``(f + γ)^−½`` as for the other rules: ``(λ/N)(σ²/η − 1)`` is
    then ``(λ/N)(γ s² − 1)``.

    Attributes:
        scale: ``λ/N``.
        init_std: σ at the start.
    """

    spherical = False
    scale: Number = 1.0
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    init_std: float = 0.05
    warm_up: bool = False

    @property
    def taps(self) -> bool:
        """It needs no curvature."""
        return False

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> BayesByBackpropState:
        """Every standard deviation alike."""
        zeros = mean.new_zeros((2, *mean.shape))
        log_std = (self.init_std / torch.as_tensor(self.scale).to(mean) ** 0.5).log().expand_as(mean).clone()
        return BayesByBackpropState(0, 0, no_count(mean, 2), log_std, zeros, zeros)

    def curvature(self, state: BayesByBackpropState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """Refused: there is none."""
        raise Unsupported("Bayes by backprop has no curvature", remedy="Give the gradient along the noise, spread.")

    def covariance(self, state: BayesByBackpropState, damping: Tensor, scale: Number) -> DiagonalCovariance:
        """``diag(σ²)``."""
        root = scale.sqrt() if isinstance(scale, Tensor) else scale**0.5
        return DiagonalCovariance(root * state.log_std.exp())

    def deviation(self, state: BayesByBackpropState, noise: Tensor, damping: Tensor) -> Tensor:
        """``σ∘ε`` over √(λ/N)."""
        return noise * state.log_std.exp()

    def update(
        self, mean: Tensor, state: Any, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, BayesByBackpropState]:
        """One step of Adam on both."""
        if message.curvature is None:
            raise Unsupported("Bayes by backprop needs the gradient along the noise", remedy="Give it as spread.")
        spread, std = message.curvature["spread"], state.log_std.exp()
        of_log_std = (spread * std) * self.scale**0.5 + (prior.damping * std.square() - 1) * self.scale
        gradient = torch.stack([prior.pull(message.gradient, mean), of_log_std])
        steps = state.steps + 1
        first = torch.lerp(state.first, gradient, 1 - self.betas[0])
        second = torch.lerp(state.second, gradient.square(), 1 - self.betas[1])
        rooted = second.sqrt().mul_((1 - self.betas[1] ** steps) ** -0.5).add_(self.epsilon)
        moved = (first / rooted).mul_(1 / (1 - self.betas[0] ** steps)).mul_(lr)
        after = BayesByBackpropState(steps, steps, state.limited, state.log_std - moved[1], first, second)
        return mean - moved[0], after
