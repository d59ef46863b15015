"""IVON: variational online Newton with Price's estimator and a step that keeps the precision positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule.optim.diagonal_newton import (
    Averaged,
    DiagonalNewtonRule,
    DiagonalNewtonState,
    Directed,
    bias,
    leave_out,
)
from bayesrule.optim.price import PriceOptimizer, PriceRule
from bayesrule.optim.rule import Message, PriorTerm, check_not_negative

FROM_TAPS = ("fisher", "fisher_samples", "T_stats", "noise", "warm_up")
"""Options of optimizers that tap layers, or that add noise to their outputs."""


def riemannian(plain: Tensor) -> Tensor:
    """``1 + z + ½z² = ½ + ½(1 + z)²``, by which a precision grows, at least ½   [Lin et al. 2020; Shen et al. 2024].

    The natural gradient's step ``z = ρ(ŝ − s)/s``, and the geodesic's next term: plain steps, ``1 + z``, go below zero
    where the noise of ŝ is large. It is written over ``plain``, the factor of such a step.
    """
    return plain.square_().add_(1).mul_(0.5)


@dataclass(frozen=True)
class IVONRule(PriceRule, DiagonalNewtonRule):
    """Algorithm 1 of Shen et al. (2024); see `IVON` for the hyper-parameters."""

    product: ClassVar[str | None] = "relative"
    """``ĥ = ĝ (θ − m)/σ²``   [line 2], over the precision ``h + γ`` that the draw had."""
    init_curvature: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(init_curvature=self.init_curvature)

    @property
    def start_curvature(self) -> float:
        """h₀."""
        return self.init_curvature

    def averaged_curvature(self, state: DiagonalNewtonState, message: Message, damping: Tensor) -> Averaged:
        """``h ← β₂h + (1−β₂)ĥ + ½(1−β₂)²(h − ĥ)²/(h + γ)``   [line 4], over the message's curvature."""
        precision = state.curvature + damping
        if message.curvature is None:
            return Averaged(state.curvature, precision)
        rate, relative = 1 - self.betas[1], message.curvature["relative"].to(precision)
        plain = relative.mul_(rate).add_(1).addcdiv_(state.curvature, precision, value=-rate)
        grown = riemannian(plain).mul_(precision)
        return Averaged(torch.sub(grown, damping, out=precision), grown)

    def direction(self, state: DiagonalNewtonState, message: Message, prior: PriorTerm, mean: Tensor) -> Directed:
        """``g ← β₁g + (1−β₁)ĝ``, then ``g/(1−β₁ᵏ) + γ(μ − m₀)``   [lines 3, 5 and 6]."""
        momentum = torch.lerp(state.momentum, message.gradient, 1 - self.betas[0])
        divisor = bias(self.betas[0], state.steps + 1)
        return Directed(momentum, prior.pull(momentum, mean, divisor), divisor)


class IVON(PriceOptimizer):
    """Improved variational online Newton: as cheap as Adam, and it needs nothing of the layers but gradients.

    Weights are drawn from ``N(μ, (λ/N) diag(h + γ)⁻¹)``; ``μ ← μ − α (m̂ + γμ)/(h + γ)``, and h averages
    ``ĝ(θ − μ)/σ²``, whose expectation is the diagonal of the expected Hessian.

    Args:
        model: The network.
        n_data: N, the number of training examples.
        lr: Step size α.
        betas: Decay of the momentum and of the curvature, which needs a long average: one draw says little.
        init_curvature: h₀: the standard deviations start at about ``√(λ/(N h₀))``.
        extra_damping: Added to γ in the mean's step alone.
        max_kl: The guard on the step, see `bayesrule.optim.rule.guarded`; None for none.
        **options: Those of `PosteriorOptimizer` but for the tap's: prior, likelihood, kl_weight, mirrored, plain, ….

    Example:
        >>> import torch, bayesrule as br
        >>> net = torch.nn.Linear(3, 1)
        >>> opt = IVON(net, n_data=100, lr=0.1, prior=br.Normal(1.0), likelihood=br.Gaussian(0.1))
        >>> with opt.sampled_params():
        ...     opt.zero_grad()
        ...     opt.nll(net(torch.randn(8, 3)), torch.randn(8, 1)).backward()
        >>> opt.step()
    """

    left_out = FROM_TAPS

    def __init__(
        self,
        model: nn.Module,
        *,
        n_data: int,
        lr: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.9999),
        init_curvature: float = 0.1,
        extra_damping: float = 0.0,
        max_kl: float | None = 0.01,
        **options: Any,
    ) -> None:
        leave_out("IVON", options, self.left_out, "takes its curvature from gradients at whole draws of the weights")
        rule = IVONRule(betas, extra_damping, max_kl, init_curvature=init_curvature)
        super().__init__(model, rule, n_data=n_data, lr=lr, **options)
