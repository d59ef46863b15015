"""Noisy K-FAC: natural gradient for a matrix-variate Gaussian posterior of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.curvature import Tapped, fan_in_moment, fan_out_moment
from bayesrule.errors import InvalidArgument
from bayesrule.optim.kronecker_inverse import EigenInverse, FactoredInverse
from bayesrule.optim.natural_gradient import NaturalGradientOptimizer, NaturalGradientRule, NaturalState
from bayesrule.optim.rule import Message, Number, averaged, no_count
from bayesrule.posteriors import CovarianceOperator

Damping = Literal["factored", "exact"]


@dataclass(frozen=True)
class NoisyKFACState(NaturalState):
    """Momentum, the averaged factors, and their inverse as of the last refresh."""

    fan_in: Float[Tensor, "*batch fan_in fan_in"]
    fan_out: Float[Tensor, "*batch fan_out fan_out"]
    inverse: FactoredInverse | EigenInverse


def zero_factors(mean: Tensor) -> tuple[Tensor, Tensor]:
    """A and S before any data."""
    *batch, fan_in, fan_out = mean.shape
    return mean.new_zeros((*batch, fan_in, fan_in)), mean.new_zeros((*batch, fan_out, fan_out))


def averaged_factors(fan_in: Tensor, fan_out: Tensor, message: Message, rate: Number) -> tuple[Tensor, Tensor]:
    """``A ← (1−β̃)A + β̃ aaᵀ`` and ``S ← (1−β̃)S + β̃ ggᵀ``   [Eq. 11]."""
    return averaged(fan_in, message, "fan_in", rate), averaged(fan_out, message, "fan_out", rate)


@dataclass(frozen=True)
class NoisyKFACRule(NaturalGradientRule):
    """Algorithm 2; see `NoisyKFAC` for the hyper-parameters."""

    damping: Damping = "factored"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.damping not in ("factored", "exact"):
            raise InvalidArgument('damping is "factored" or "exact"', got=repr(self.damping))

    def init(self, mean: Tensor, shapes: Sequence[tuple[int, int]], damping: Tensor) -> NoisyKFACState:
        """Factors of zero."""
        sides = zero_factors(mean)
        return NoisyKFACState(
            0, 0, no_count(mean, 2), torch.zeros_like(mean), *sides, self._invert(*sides, damping)
        )  # fmt: skip

    def curvature(self, state: NoisyKFACState, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """``E[a aᵀ]`` and ``E[g gᵀ]``   [Eq. 2]."""
        (layer,) = tapped
        return {"fan_in": fan_in_moment(layer), "fan_out": fan_out_moment(layer)}

    def covariance(self, state: NoisyKFACState, damping: Tensor, scale: Number) -> CovarianceOperator:
        """``(λ/N) [S^γ]⁻¹ ⊗ [A^γ]⁻¹``   [Eq. 12], or ``(λ/N) (S ⊗ A + γI)⁻¹`` with exact damping."""
        return state.inverse.covariance(damping, scale)

    def deviation(self, state: NoisyKFACState, noise: Tensor, damping: Tensor) -> Tensor:
        """``[A^γ]^−½ E [S^γ]^−½``."""
        return state.inverse.deviation(noise, damping)

    def absorb(
        self, state: NoisyKFACState, message: Message, damping: Tensor, rate: Number, *, refresh: bool
    ) -> NoisyKFACState:
        """Eq. 11, and the inverses of Eq. 12 every ``T_inv`` steps."""
        if message.curvature is None and not refresh:
            return state
        sides = averaged_factors(state.fan_in, state.fan_out, message, rate)
        inverse = self._invert(*sides, damping) if refresh else state.inverse
        return replace(state, fan_in=sides[0], fan_out=sides[1], inverse=inverse)

    def solve(self, state: NoisyKFACState, x: Tensor, damping: Tensor) -> Tensor:
        """``[A^γ]⁻¹ V [S^γ]⁻¹``; with exact damping and a guard, see `EigenInverse.step`."""
        return state.inverse.step(x, damping, guarded=self.max_kl is not None)

    def _invert(self, fan_in: Tensor, fan_out: Tensor, damping: Tensor) -> FactoredInverse | EigenInverse:
        if self.damping == "exact":
            return EigenInverse.of(fan_in, fan_out)
        return FactoredInverse.of(fan_in, fan_out, damping, self.extra_damping)


class NoisyKFAC(NaturalGradientOptimizer):
    """Noisy K-FAC (NNG-MVG): each layer's weight (and bias, as a further row) has a matrix-variate Gaussian posterior.

    Args:
        model: The network.
        n_data: N, the number of training examples.
        lr: Step size α̃.
        beta: β̃, the weight of the newest curvature in its average.
        damping: ``"factored"`` as printed [Eq. 12], which damps by more than γ and so makes the posterior too tight; or
            ``"exact"``, ``A ⊗ S + γI`` in the factors' eigenbases; the mean's step is then damped as in the factored
            form (see `step_damping`), unless ``max_kl`` is None.
        momentum: Of the gradient, before it is preconditioned.
        extra_damping: Added to γ in the mean's step alone.
        max_kl: The guard on the step, see `bayesrule.optim.rule.guarded`; None for none.
        warm_up: Start from the mean and an even average of curvatures, instead of from the prior's variance.
        **options: Those of `PosteriorOptimizer`: prior, likelihood, kl_weight, fisher, T_stats, T_inv, noise, ….

    Example:
        >>> import torch, bayesrule as br
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> opt = NoisyKFAC(net, n_data=100, lr=1e-2, prior=br.Normal(1.0), likelihood=br.Categorical())
        >>> with opt.sampled_params():
        ...     opt.zero_grad()
        ...     torch.nn.functional.cross_entropy(net(torch.randn(8, 3)), torch.randint(2, (8,))).backward()
        >>> opt.step()
        >>> br.predict(opt, torch.randn(5, 3), samples=4).probs.shape
        torch.Size([5, 2])
    """

    rule_type = NoisyKFACRule

    def __init__(self, model: nn.Module, *, n_data: int, damping: Damping = "factored", **options: Any) -> None:
        super().__init__(model, n_data=n_data, rule_options={"damping": damping}, **options)
