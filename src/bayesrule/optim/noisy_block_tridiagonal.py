"""Noisy block-tridiagonal K-FAC: neighbouring layers are correlated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.curvature import Tapped, cross_moments, fan_in_moment, fan_out_moment
from bayesrule.optim.natural_gradient import NaturalGradientOptimizer, NaturalGradientRule, NaturalState
from bayesrule.optim.rule import Message, Number, averaged, no_count
from bayesrule.posteriors import BlockTridiagonalCovariance, EigenKroneckerCovariance

Moments = tuple[Tensor, ...]


@dataclass(frozen=True)
class NoisyBlockTridiagonalState(NaturalState):
    """Momentum, the averaged moments of each layer and of neighbours, and ``F̂⁻¹`` for draws and for the mean's step."""

    fan_in: Moments
    fan_out: Moments
    fan_in_cross: Moments
    fan_out_cross: Moments
    inverse: BlockTridiagonalCovariance
    step_inverse: BlockTridiagonalCovariance


@dataclass(frozen=True)
class NoisyBlockTridiagonalRule(NaturalGradientRule):
    """Eq. 9 with the Fisher matrix of Martens & Grosse 2015, Sec. 4.3: a Gaussian chain over the layers."""

    joint = True
    event_dim = 1

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> NoisyBlockTridiagonalState:
        """Moments of zero."""
        batch = mean.shape[:-1]

        def zeros(rows: int, columns: int) -> Tensor:
            return mean.new_zeros((*batch, rows, columns))

        moments = (
            tuple(zeros(m, m) for m, _ in shapes),
            tuple(zeros(n, n) for _, n in shapes),
            tuple(zeros(this[0], following[0]) for this, following in pairwise(shapes)),
            tuple(zeros(this[1], following[1]) for this, following in pairwise(shapes)),
        )
        inverses = self._invert(moments, damping)
        return NoisyBlockTridiagonalState(0, 0, no_count(mean, 1), torch.zeros_like(mean), *moments, *inverses)

    def curvature(self, state: NoisyBlockTridiagonalState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """``A_ll, G_ll`` of every layer, ``A_{l,l+1}, G_{l,l+1}`` of neighbours."""
        found, tapped = {}, [layer.to(state.momentum.dtype) for layer in tapped]
        for index, layer in enumerate(tapped):
            found[f"fan_in_{index}"], found[f"fan_out_{index}"] = fan_in_moment(layer), fan_out_moment(layer)
        for index, (this, following) in enumerate(pairwise(tapped)):
            found[f"fan_in_cross_{index}"], found[f"fan_out_cross_{index}"] = cross_moments(this, following)
        return found

    def covariance(
        self, state: NoisyBlockTridiagonalState, damping: Tensor, scale: Number
    ) -> BlockTridiagonalCovariance:
        """``(λ/N) ΞᵀΛΞ``."""
        blocks = (replace(block, spectrum=scale * block.spectrum) for block in state.inverse.conditionals)
        return BlockTridiagonalCovariance(tuple(blocks), state.inverse.couplings)

    def absorb(
        self, state: NoisyBlockTridiagonalState, message: Message, damping: Tensor, rate: Number, *, refresh: bool
    ) -> NoisyBlockTridiagonalState:
        """All moments averaged alike, so that they stay moments of one law."""

        def moved(name: str, old: Moments) -> Moments:
            return tuple(averaged(each, message, f"{name}_{index}", rate) for index, each in enumerate(old))

        state = replace(
            state,
            fan_in=moved("fan_in", state.fan_in),
            fan_out=moved("fan_out", state.fan_out),
            fan_in_cross=moved("fan_in_cross", state.fan_in_cross),
            fan_out_cross=moved("fan_out_cross", state.fan_out_cross),
        )
        if not refresh:
            return state
        moments = state.fan_in, state.fan_out, state.fan_in_cross, state.fan_out_cross
        inverse, step_inverse = self._invert(moments, damping)
        return replace(state, inverse=inverse, step_inverse=step_inverse)

    def solve(self, state: NoisyBlockTridiagonalState, x: Tensor, damping: Tensor) -> Tensor:
        """``F̂⁻¹ x = ΞᵀΛΞ x``."""
        return state.step_inverse.matmul(x)

    def _invert(
        self, moments: tuple[Moments, ...], damping: Tensor
    ) -> tuple[BlockTridiagonalCovariance, BlockTridiagonalCovariance]:
        """In float64, with γ for draws, and with the extra damping for the mean's step."""
        doubled = [[each.double() for each in kind] for kind in moments]
        dtype = moments[0][0].dtype
        gamma = (damping.unsqueeze(-1) if damping.ndim else damping).double()  # against matrices, not the vector event
        for_draws = _cast(BlockTridiagonalCovariance.from_moments(*doubled, damping=gamma), dtype)
        if self.extra_damping == 0:
            return for_draws, for_draws
        damped = BlockTridiagonalCovariance.from_moments(*doubled, damping=gamma + self.extra_damping)
        return for_draws, _cast(damped, dtype)


def _cast(operator: BlockTridiagonalCovariance, dtype: torch.dtype) -> BlockTridiagonalCovariance:
    def cast(block: EigenKroneckerCovariance) -> EigenKroneckerCovariance:
        return type(block)(*(getattr(block, field.name).to(dtype) for field in fields(block)))

    blocks = map(cast, operator.conditionals)
    couplings = ((fan_in.to(dtype), fan_out.to(dtype)) for fan_in, fan_out in operator.couplings)
    return BlockTridiagonalCovariance(tuple(blocks), tuple(couplings))


class NoisyBlockTridiagonal(NaturalGradientOptimizer):
    """Noisy block-tridiagonal K-FAC: one posterior over a chain of Linear layers, in the order they are registered.

    The posterior's *covariance* is block-tridiagonal; factors are damped as in Eq. 12. Arguments are those of
    `NoisyKFAC`, but for ``damping``.
    """

    rule_type = NoisyBlockTridiagonalRule

    def __init__(self, model: nn.Module, *, n_data: int, **options: Any) -> None:
        super().__init__(model, n_data=n_data, **options)
