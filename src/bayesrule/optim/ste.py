"""STE: the straight-through estimator, for binary weights without a posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument
from bayesrule.optim.binary import BinaryOptimizer, BinaryRule, BinaryState, most_probable
from bayesrule.optim.plain import PlainState, adam_update
from bayesrule.optim.rule import Message, Number, PriorTerm, check_not_negative, no_count
from bayesrule.posteriors import Part, PointPosterior


@dataclass(frozen=True)
class STEState(BinaryState):
    """With Adam's moments."""

    moments: PlainState


@dataclass(frozen=True)
class STERule(BinaryRule):
    """Eq. 48; see `STE` for the hyper-parameters."""

    step: Literal["adam", "gradient"] = "adam"
    clip: float | None = 1.0

    def __post_init__(self) -> None:
        check_not_negative(clip=self.clip)
        if self.step not in ("adam", "gradient"):
            raise InvalidArgument('step is "adam" or "gradient"', got=repr(self.step))

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> STEState:
        """Latent weights: the network's own."""
        return STEState(0, 0, no_count(mean, 2), mean.clone(), PlainState.of(mean))

    def deviation(self, state: STEState, noise: Tensor, damping: Tensor) -> Tensor:
        """None: gradients are at ``sign λ``."""
        return torch.zeros_like(noise)

    def slope(self, state: STEState, noise: Tensor) -> Tensor:
        """``s ≡ 1``."""
        return torch.ones_like(noise)

    def posterior(
        self, mean: Tensor, state: STEState, damping: Tensor, scale: Number, parts: tuple[Part, ...] = ()
    ) -> PointPosterior:
        """All mass on ``sign λ``."""
        return PointPosterior(mean, 2, parts)

    def update(
        self, mean: Tensor, state: STEState, message: Message, prior: PriorTerm, *, lr: Number, refresh: bool
    ) -> tuple[Tensor, STEState]:
        """``λ ← λ − α∇ℓ(sign λ)``   [Eq. 48], or Adam's step of the same gradient; then within ±clip."""
        moments = state.moments
        if self.step == "adam":
            natural, moments = adam_update(state.natural, moments, message.gradient, lr=lr)
        else:
            natural = state.natural - lr * message.gradient
        if self.clip is not None:
            natural = natural.clamp(-self.clip, self.clip)
        return most_probable(natural), STEState(state.steps + 1, 0, state.limited, natural, moments)


class STE(BinaryOptimizer):
    """The straight-through estimator: latent weights λ follow the gradient at the binary weights ``sign λ``.

    The limit of `BayesBiNN` without noise, with ``s ≡ 1`` and without forgetting. There is no posterior: predictions
    are at ``sign λ``.

    Args:
        model: The network; normalise after its binary layers (`nn.BatchNorm1d`, …).
        n_data: N, the number of training examples.
        lr: Step size α.
        step: ``"adam"``, as is usual, or the printed ``"gradient"``.
        clip: Latent weights stay within ±clip, else they need long to come back; None for no bounds, as printed.
        **options: likelihood, plain, plain_lr, param_groups, seed.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        n_data: int,
        lr: float = 1e-3,
        step: Literal["adam", "gradient"] = "adam",
        clip: float | None = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(model, STERule(step, clip), n_data=n_data, lr=lr, **options)

    def _warn_of_large_batch(self, examples: int) -> None:
        """Not here: there is no posterior that could be too wide."""
