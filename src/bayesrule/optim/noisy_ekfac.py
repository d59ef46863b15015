"""Noisy EK-FAC: K-FAC's eigenbases with an eigenvalue of its own for every direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.curvature import Tapped, fan_in_moment, fan_out_moment, squared_gradients
from bayesrule.optim.kronecker_inverse import EigenInverse
from bayesrule.optim.natural_gradient import NaturalGradientOptimizer, NaturalGradientRule, NaturalState
from bayesrule.optim.noisy_kfac import averaged_factors, zero_factors
from bayesrule.optim.rule import Message, Number, averaged, no_count
from bayesrule.posteriors import EigenKroneckerCovariance


@dataclass(frozen=True)
class NoisyEKFACState(NaturalState):
    """Momentum, the averaged factors, and the bases of the last refresh with the averaged squares along them."""

    fan_in: Float[Tensor, "*batch fan_in fan_in"]
    fan_out: Float[Tensor, "*batch fan_out fan_out"]
    inverse: EigenInverse


@dataclass(frozen=True)
class NoisyEKFACRule(NaturalGradientRule):
    """Eq. 9 with the Fisher matrix of George et al. 2018, ``F = Q diag(f) Qᵀ``."""

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> NoisyEKFACState:
        """Factors of zero."""
        sides = zero_factors(mean)
        return NoisyEKFACState(0, 0, no_count(mean, 2), torch.zeros_like(mean), *sides, EigenInverse.of(*sides))

    def curvature(self, state: NoisyEKFACState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """``E[a aᵀ]``, ``E[g gᵀ]``, and ``E[(Q_inᵀ G Q_out)²]`` in the bases as they are."""
        (layer,) = tapped
        squares = squared_gradients(layer.rotated(state.inverse.fan_in_basis, state.inverse.fan_out_basis))
        return {"fan_in": fan_in_moment(layer), "fan_out": fan_out_moment(layer), "squares": squares}

    def covariance(self, state: NoisyEKFACState, damping: Tensor, scale: Number) -> EigenKroneckerCovariance:
        """``(λ/N) Q (diag f + γ)⁻¹ Qᵀ``."""
        return state.inverse.covariance(damping, scale)

    def deviation(self, state: NoisyEKFACState, noise: Tensor, damping: Tensor) -> Tensor:
        """``Q (Qᵀε / √(f + γ))``."""
        return state.inverse.deviation(noise, damping)

    def absorb(
        self, state: NoisyEKFACState, message: Message, damping: Tensor, rate: Number, *, refresh: bool
    ) -> NoisyEKFACState:
        """Q from the factors at a refresh, f an average of squares along it.

        At the first estimate, whose squares are along no eigenvectors yet, f starts from K-FAC's ``aᵢ sⱼ``.
        """
        sides = averaged_factors(state.fan_in, state.fan_out, message, rate)
        inverse = replace(state.inverse, spectrum=averaged(state.inverse.spectrum, message, "squares", rate))
        if refresh:
            fresh = EigenInverse.of(*sides)
            inverse = fresh if state.estimates == 0 else _rebased(inverse, fresh)
        return replace(state, fan_in=sides[0], fan_out=sides[1], inverse=inverse)

    def solve(self, state: NoisyEKFACState, x: Tensor, damping: Tensor) -> Tensor:
        """``Q (diag f + γ)⁻¹ Qᵀ x``; where steps are guarded, with `step_damping` in the place of γ."""
        return state.inverse.step(x, damping, guarded=self.max_kl is not None)


def _rebased(old: EigenInverse, new: EigenInverse) -> EigenInverse:
    """The diagonal of ``Q diag(f) Qᵀ`` in new bases: ``(Q'_inᵀ Q_in)² f ((Q'_outᵀ Q_out)²)ᵀ``."""
    left, right = new.fan_in_basis.mT @ old.fan_in_basis, new.fan_out_basis.mT @ old.fan_out_basis
    return replace(new, spectrum=left.square() @ old.spectrum @ right.square().mT)


class NoisyEKFAC(NaturalGradientOptimizer):
    """Noisy EK-FAC: beyond the paper, K-FAC's bases with a variance of its own for each of their directions.

    Damping is exact; that of the mean's step is K-FAC's (see `step_damping`), unless ``max_kl`` is None. Every
    ``T_inv`` steps the bases are found anew, and the squares along them moved to the new ones. Arguments are those of
    `NoisyKFAC`, but for ``damping``.
    """

    rule_type = NoisyEKFACRule

    def __init__(self, model: nn.Module, *, n_data: int, **options: Any) -> None:
        super().__init__(model, n_data=n_data, **options)
