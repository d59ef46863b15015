"""Noisy natural gradient with a full covariance over all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.curvature import Tapped, example_gradients
from bayesrule.errors import InvalidArgument
from bayesrule.optim.kronecker_inverse import cholesky, spd_inverse
from bayesrule.optim.natural_gradient import NaturalGradientOptimizer, NaturalGradientRule, NaturalState
from bayesrule.optim.rule import Message, Number, averaged, no_count
from bayesrule.posteriors import FullCovariance


@dataclass(frozen=True)
class NoisyFullState(NaturalState):
    """Momentum, the averaged Fisher matrix, a root of ``(F + γ)⁻¹`` for draws, and the inverse for the mean's step."""

    fisher: Float[Tensor, "*batch d d"]
    root: Float[Tensor, "*batch d d"]
    inverse: Float[Tensor, "*batch d d"]


@dataclass(frozen=True)
class NoisyFullRule(NaturalGradientRule):
    """Eq. 9 as it stands: F is the whole matrix over the entries of all layers."""

    joint = True
    spherical = False
    event_dim = 1
    max_entries: int = 20_000

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> NoisyFullState:
        """``F = 0``."""
        size = mean.shape[-1]
        if size > self.max_entries:
            raise InvalidArgument(
                f"A full covariance over {size:,} weights needs dense matrices of that size",
                got=f"max_entries={self.max_entries:,}",
                remedy="Use NoisyKFAC, leave layers to a plain rule by plain=(…), or raise max_entries.",
            )
        fisher = mean.new_zeros((*mean.shape, size))
        return NoisyFullState(0, 0, no_count(mean, 1), torch.zeros_like(mean), fisher, *self._invert(fisher, damping))

    def curvature(self, state: NoisyFullState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """``E[∇ log p ∇ log pᵀ]`` over examples, of all layers together."""
        gradients = [example_gradients(layer).flatten(-2) for layer in tapped]
        if len({each.shape[-2] for each in gradients}) > 1:
            raise InvalidArgument(
                "A full covariance needs every layer's gradient example by example",
                got=f"layers with {[each.shape[-2] for each in gradients]} rows",
                remedy="Put examples first throughout the network, or name the layers that do not in plain=(…).",
            )
        rows = torch.cat(gradients, dim=-1).flatten(-3, -2)
        return {"fisher": rows.mT @ rows / tapped[0].examples}

    def covariance(self, state: NoisyFullState, damping: Tensor, scale: Number) -> FullCovariance:
        """``(λ/N) (F + γ)⁻¹``   [Eq. 8]."""
        root = scale.sqrt() if isinstance(scale, Tensor) else scale**0.5
        return FullCovariance(root * state.root, (state.root.shape[-1],))

    def absorb(
        self, state: NoisyFullState, message: Message, damping: Tensor, rate: Number, *, refresh: bool
    ) -> NoisyFullState:
        """``F ← (1−β̃)F + β̃ E[ggᵀ]``."""
        fisher = averaged(state.fisher, message, "fisher", rate)
        root, inverse = self._invert(fisher, damping) if refresh else (state.root, state.inverse)
        return replace(state, fisher=fisher, root=root, inverse=inverse)

    def solve(self, state: NoisyFullState, x: Tensor, damping: Tensor) -> Tensor:
        """``(F + γ)⁻¹ x``."""
        return (state.inverse @ x.unsqueeze(-1)).squeeze(-1)

    def _invert(self, fisher: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
        """In float64: the root of the draws' covariance, and the inverse with the extra damping of the mean's step."""
        doubled = fisher.double()
        spread = torch.diag_embed(damping.double().expand(fisher.shape[:-1]))
        root = cholesky(spd_inverse(doubled + spread))
        identity = torch.eye(fisher.shape[-1], dtype=torch.float64, device=fisher.device)
        inverse = spd_inverse(doubled + spread + self.extra_damping * identity)
        return root.to(fisher.dtype), inverse.to(fisher.dtype)


class NoisyFull(NaturalGradientOptimizer):
    """Noisy natural gradient with one full covariance over the weights of all layers, for small networks.

    Arguments are those of `NoisyKFAC`, but for ``damping``; ``max_entries`` bounds the size it takes.
    """

    rule_type = NoisyFullRule

    def __init__(self, model: nn.Module, *, n_data: int, max_entries: int = 20_000, **options: Any) -> None:
        super().__init__(model, n_data=n_data, rule_options={"max_entries": max_entries}, **options)
