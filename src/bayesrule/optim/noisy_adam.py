"""Noisy Adam: natural gradient for a fully factorized Gaussian posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.curvature import Tapped, squared_gradients
from bayesrule.errors import InvalidArgument
from bayesrule.optim.diagonal_newton import check_betas
from bayesrule.optim.rule import (
    Message,
    Number,
    PriorTerm,
    Rule,
    State,
    averaged,
    check_not_negative,
    ema_rate,
    guarded,
    inner,
    moved,
    no_count,
)
from bayesrule.optim.shell import PosteriorOptimizer
from bayesrule.posteriors import DiagonalCovariance


@dataclass(frozen=True)
class NoisyAdamState(State):
    """Momentum m, and the average f of squared gradients."""

    momentum: Float[Tensor, "*batch fan_in fan_out"]
    squares: Float[Tensor, "*batch fan_in fan_out"]


@dataclass(frozen=True)
class NoisyAdamRule(Rule):
    """Algorithm 1; see `NoisyAdam` for the hyper-parameters."""

    spherical = False
    inverts = False
    betas: tuple[float, float] = (0.9, 0.999)
    squares: Literal["example", "batch"] = "example"
    denominator: Literal["root_then_damp", "damp_then_root"] = "root_then_damp"
    extra_damping: float = 0.0
    max_kl: float | None = 0.01
    warm_up: bool = False

    def __post_init__(self) -> None:
        check_betas(self.betas)
        check_not_negative(extra_damping=self.extra_damping, max_kl=self.max_kl)
        if self.squares not in ("example", "batch"):
            raise InvalidArgument('squares is "example" or "batch"', got=repr(self.squares))
        if self.denominator not in ("root_then_damp", "damp_then_root"):
            raise InvalidArgument('denominator is "root_then_damp" or "damp_then_root"', got=repr(self.denominator))

    @property
    def taps(self) -> bool:
        """Squares of batch means need no tap."""
        return self.squares == "example"

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> NoisyAdamState:
        """``m = f = 0``: every weight starts with the prior's variance."""
        return NoisyAdamState(0, 0, no_count(mean, 2), torch.zeros_like(mean), torch.zeros_like(mean))

    def curvature(self, state: NoisyAdamState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """``E[(∇ log p(y | w, x))²]`` over examples."""
        (layer,) = tapped
        return {"squares": squared_gradients(layer)}

    def covariance(self, state: NoisyAdamState, damping: Tensor, scale: Number) -> DiagonalCovariance:
        """``(λ/N) diag(f + γ)⁻¹``."""
        return DiagonalCovariance((scale / (state.squares + damping)).sqrt())

    def deviation(self, state: NoisyAdamState, noise: Tensor, damping: Tensor) -> Tensor:
        """``ε / √(f + γ)``."""
        return noise * (state.squares + damping).rsqrt()

    def update(
        self, mean: Tensor, state: NoisyAdamState, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, NoisyAdamState]:
        """``m ← β₁m + (1−β₁)v``, ``f ← β₂f + (1−β₂)g²``, ``μ ← μ − α m̃ / (√f + γ)``   [Algorithm 1].

        ``v = g + γ(μ − m₀)``, and ``m̃ = m/(1 − β₁ᵏ)``; f is not bias-corrected. The printed last step divides by
        ``√(f + γ)``, here an option.
        """
        if self.squares == "batch":
            message = Message(message.gradient, {"squares": message.gradient.square()})
        rate = ema_rate(state, 1 - self.betas[1], self.warm_up)
        squares = averaged(state.squares, message, "squares", rate)
        momentum = torch.lerp(state.momentum, prior.pull(message.gradient, mean), 1 - self.betas[0])
        damping = prior.damping + self.extra_damping
        rooted = squares.sqrt() + damping if self.denominator == "root_then_damp" else (squares + damping).sqrt()
        step = momentum / (1 - self.betas[0] ** (state.steps + 1)) / rooted
        length = inner(step.square(), squares + prior.damping, 2)
        lr, limited = guarded(lr, length, 2, self.max_kl, state.limited)
        estimates = state.estimates + (message.curvature is not None)
        return moved(mean, step, lr), NoisyAdamState(state.steps + 1, estimates, limited, momentum, squares)


class NoisyAdam(PosteriorOptimizer):
    """Noisy Adam (NNG-FFG): Adam's update with weights drawn from ``N(μ, (λ/N) diag(f + γ)⁻¹)``.

    ``γ = λ/(Nη)``, for a prior of variance η.

    Args:
        model: The network.
        n_data: N, the number of training examples.
        lr: Step size α.
        betas: Decay of the momentum and of the squares.
        squares: Of each ``"example"``, with targets as ``fisher`` says; or of the ``"batch"`` mean, as Adam does, which
            makes f too small by the batch size, and the posterior too wide.
        denominator: ``√f + γ`` (``"root_then_damp"``), or the printed ``√(f + γ)`` (``"damp_then_root"``).
        extra_damping: Added to γ in the mean's step alone.
        max_kl: The guard on the step, see `bayesrule.optim.rule.guarded`; None for none.
        warm_up: Start from the mean and an even average of squares, instead of from the prior's variance.
        **options: Those of `PosteriorOptimizer`: prior, likelihood, kl_weight, fisher, noise, plain, seed, ….

    Example:
        >>> import torch, bayesrule as br
        >>> net = torch.nn.Linear(3, 1)
        >>> opt = NoisyAdam(net, n_data=100, lr=1e-2, prior=br.Normal(1.0), likelihood=br.Gaussian(0.1))
        >>> with opt.sampled_params():
        ...     opt.zero_grad()
        ...     opt.nll(net(torch.randn(8, 3)), torch.randn(8, 1)).backward()
        >>> opt.step()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        n_data: int,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        squares: Literal["example", "batch"] = "example",
        denominator: Literal["root_then_damp", "damp_then_root"] = "root_then_damp",
        extra_damping: float = 0.0,
        max_kl: float | None = 0.01,
        warm_up: bool = False,
        **options: Any,
    ) -> None:
        rule = NoisyAdamRule(betas, squares, denominator, extra_damping, max_kl, warm_up)
        super().__init__(model, rule, n_data=n_data, lr=lr, **options)
