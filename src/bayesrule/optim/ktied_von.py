"""KTiedVON: variational online Newton whose uncertainty is k-tied, O(k(m + n)) numbers for an m × n matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.curvature import Fisher, Tapped, squared_gradients
from bayesrule.errors import InvalidArgument
from bayesrule.optim.diagonal_newton import check_betas, corrected, leave_out
from bayesrule.optim.ivon import riemannian
from bayesrule.optim.price import PriceOptimizer, PriceRule
from bayesrule.optim.rule import (
    Message,
    Number,
    PriorTerm,
    State,
    check_not_negative,
    guarded,
    inner,
    moved,
    no_count,
)
from bayesrule.posteriors import KTiedCovariance


@dataclass(frozen=True)
class KTiedVONState(State):
    """Momentum, and the factors of ``T = U Vᵀ``, the standard deviations over √(λ/N)."""

    momentum: Float[Tensor, "*batch fan_in fan_out"]
    fan_in_factor: Float[Tensor, "*batch fan_in k"]
    fan_out_factor: Float[Tensor, "*batch fan_out k"]

    @property
    def spread(self) -> Float[Tensor, "*batch fan_in fan_out"]:
        """T."""
        return self.fan_in_factor @ self.fan_out_factor.mT


@dataclass(frozen=True)
class KTiedVONRule(PriceRule):
    """The update of docs/ktied-von.md; see `KTiedVON` for the hyper-parameters."""

    spherical = False
    inverts = False
    rank: int = 2
    betas: tuple[float, float] = (0.9, 0.999)
    curvature_from: Literal["price", "squares"] = "price"
    init_curvature: float = 0.1
    extra_damping: float = 0.0
    max_kl: float | None = None
    warm_up: bool = False

    def __post_init__(self) -> None:
        check_betas(self.betas)
        check_not_negative(
            init_curvature=self.init_curvature, extra_damping=self.extra_damping, max_kl=self.max_kl
        )  # fmt: skip
        if not isinstance(self.rank, int | float) or self.rank % 1:
            raise InvalidArgument("The rank of a k-tied posterior is a whole number", got=repr(self.rank))
        if self.rank < 1:
            raise InvalidArgument("The rank of a k-tied posterior must be at least 1", got=self.rank)
        if self.curvature_from not in ("price", "squares"):
            raise InvalidArgument('curvature_from is "price" or "squares"', got=repr(self.curvature_from))

    @property
    def taps(self) -> bool:
        """Squares of gradients need a tap."""
        return self.curvature_from == "squares"

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> KTiedVONState:
        """Every standard deviation about that of the curvature h₀; the k columns differ by slow waves.

        Columns that are alike would stay alike.
        """
        rank = min(self.rank, *mean.shape[-2:])
        event = damping.reshape(*damping.shape, *(1,) * (2 - damping.ndim)) if damping.ndim < 2 else damping
        level = ((self.init_curvature + event.mean((-2, -1), keepdim=True)).rsqrt() / rank).sqrt()
        factors = [level * _waves(size, rank, mean).expand(*mean.shape[:-2], size, rank) for size in mean.shape[-2:]]
        return KTiedVONState(0, 0, no_count(mean, 2), torch.zeros_like(mean), factors[0], factors[1])

    def at_draw(self, state: KTiedVONState, gradient: Tensor, deviation: Tensor, damping: Tensor) -> dict[str, Tensor]:
        """Both products of ``H∘T = ĝ ∘ (θ − μ)/T`` (times N/λ), which is never kept."""
        return _products(gradient * deviation / state.spread, state)

    def curvature(self, state: KTiedVONState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """Both products of ``E[(∇ℓ_i)²] ∘ T``."""
        (layer,) = tapped
        return _products(squared_gradients(layer) * state.spread, state)

    def covariance(self, state: KTiedVONState, damping: Tensor, scale: Number) -> KTiedCovariance:
        """``(λ/N) diag(T²)``."""
        return KTiedCovariance(state.fan_in_factor * scale**0.5, state.fan_out_factor)

    def update(
        self, mean: Tensor, state: KTiedVONState, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, KTiedVONState]:
        """Factors by `tied_step`, then ``μ ← μ − α T²(m̂ + γ(μ − m₀))``."""
        fan_in, fan_out = state.fan_in_factor, state.fan_out_factor
        if message.curvature:
            fan_in, fan_out = self.tied_step(state, message, prior.damping)
        variance = (fan_in @ fan_out.mT).square()
        momentum = torch.lerp(state.momentum, message.gradient, 1 - self.betas[0])
        direction = prior.pull(corrected(momentum, self.betas[0], state.steps + 1), mean)
        step = direction * (variance / (1 + self.extra_damping * variance) if self.extra_damping else variance)
        lr, limited = guarded(lr, inner(step.square(), 1 / variance, 2), 2, self.max_kl, state.limited)
        estimates = state.estimates + bool(message.curvature)
        return moved(mean, step, lr), KTiedVONState(state.steps + 1, estimates, limited, momentum, fan_in, fan_out)

    def tied_step(self, state: KTiedVONState, message: Message, damping: Tensor) -> tuple[Tensor, Tensor]:
        """``U ← U ∘ q(ρ(A/R − 1))^(−¼)``, ``A = ((H + γ)∘T)V``, ``R = (1/T)V``; V likewise with the transposes."""
        curvature, spread = message.curvature or {}, state.spread
        found = _products(damping * spread, state)
        inverse = _products(1 / spread, state)
        moved_factors = []
        for key, factor in (("fan_in", state.fan_in_factor), ("fan_out", state.fan_out_factor)):
            target = curvature[key].to(factor) + found[key]
            plain = 1 + (1 - self.betas[1]) * (target / inverse[key] - 1)
            growth = plain if self.taps else riemannian(plain)
            shrunk = growth.pow(-0.25) + 0 * growth  # not a number where it overflowed, which a step is refused for
            moved_factors.append(factor * shrunk)
        return moved_factors[0], moved_factors[1]


class KTiedVON(PriceOptimizer):
    """Variational online Newton with k-tied uncertainty: half of Adam's state, a posterior included.

    Weights are drawn from ``N(μ, (λ/N) diag((U Vᵀ)²))``. A step moves the factors by the natural gradient, projected
    onto the tied family by one monotone multiplicative update; its fixed point on a quadratic is the KL-projection of
    the diagonal optimum. Of the curvature only products with the factors are formed; the derivation is in
    docs/ktied-von.md.

    Args:
        model: The network.
        n_data: N, the number of training examples.
        lr: Step size α.
        rank: k.
        betas: Decay of the momentum, and of the precision (``1 − ρ``). A product averages over a row or a column, so
            that it may be shorter than IVON's.
        curvature_from: ``"price"``: gradients at draws, for any layer. ``"squares"``: squared gradients of each
            example, by a tap, as `VOGN` has them.
        init_curvature: h₀: the standard deviations start at about ``√(λ/(N h₀))``.
        extra_damping: Added to the curvature in the mean's step alone.
        max_kl: The guard on the step, see `bayesrule.optim.rule.guarded`; None for none.
        fisher: Whose gradients are squared, for ``"squares"``.
        **options: Those of `PosteriorOptimizer`: prior, likelihood, kl_weight, mirrored, plain, seed, ….

    Example:
        >>> import torch, bayesrule as br
        >>> net = torch.nn.Linear(3, 2)
        >>> opt = KTiedVON(net, n_data=100, lr=0.1, rank=2, prior=br.Normal(1.0), likelihood=br.Gaussian(0.1))
        >>> with opt.sampled_params():
        ...     opt.zero_grad()
        ...     opt.nll(net(torch.randn(8, 3)), torch.randn(8, 2)).backward()
        >>> opt.step()
    """

    left_out = ("noise", "warm_up")

    def __init__(
        self,
        model: nn.Module,
        *,
        n_data: int,
        lr: float = 0.1,
        rank: int = 2,
        betas: tuple[float, float] = (0.9, 0.999),
        curvature_from: Literal["price", "squares"] = "price",
        init_curvature: float = 0.1,
        extra_damping: float = 0.0,
        max_kl: float | None = 0.01,
        fisher: Fisher = "empirical",
        **options: Any,
    ) -> None:
        leave_out("KTiedVON", options, self.left_out, "draws whole weights, from the first step on")
        rule = KTiedVONRule(rank, betas, curvature_from, init_curvature, extra_damping, max_kl)
        super().__init__(model, rule, n_data=n_data, lr=lr, fisher=fisher, **options)


def _products(matrix: Tensor, state: KTiedVONState) -> dict[str, Tensor]:
    """``M V`` and ``Mᵀ U``."""
    return {"fan_in": matrix @ state.fan_out_factor, "fan_out": matrix.mT @ state.fan_in_factor}


def _waves(size: int, rank: int, like: Tensor) -> Float[Tensor, "size rank"]:
    """``exp(0.1 cos(π a (i + ½)/size))`` for columns a = 0 … k − 1."""
    rows = torch.arange(size, dtype=like.dtype, device=like.device) + 0.5
    columns = torch.arange(rank, dtype=like.dtype, device=like.device)
    return (0.1 * torch.cos(math.pi / size * rows[:, None] * columns)).exp()
