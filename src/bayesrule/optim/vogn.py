"""Variational online Gauss–Newton: OGN with gradients at draws of the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from bayesrule.optim.ogn import GaussNewtonOptimizer, GaussNewtonRule


@dataclass(frozen=True)
class VOGNRule(GaussNewtonRule):
    """Eq. 46 with Eq. 45: gradients and squares at ``θ + ε``, ``ε ~ N(0, diag(1/s))``, ``s = (N/λ)(h + γ)``."""


class VOGN(GaussNewtonOptimizer):
    """Variational online Gauss–Newton: ``μ ← μ − α m̂/(h + γ)``, weights drawn from ``N(μ, (λ/N) diag(h + γ)⁻¹)``.

    m̂ averages ``∇ℓ + γμ``, without the bias of an average that starts at zero.
    With ``betas=(0, 1 − lr)`` it is the learning rule itself, of one step size ρ (Eq. 46); momentum, a step size of its
    own for the mean, and damping are those of Osawa et al. (2019).

    Args:
        model: The network.
        n_data: N, the number of training examples.
        lr: Step size α.
        betas: Decay of the momentum and of the curvature.
        extra_damping: Added to γ in the mean's step alone.
        max_kl: The guard on the step, see `bayesrule.optim.rule.guarded`; None for none.
        warm_up: Start from the mean and an even average of curvatures, instead of from the prior's variance.
        fisher: Whose gradients are squared: of the loss (``"empirical"``, as published), or of targets of the model
            (``"sampled"``, ``"exact"``), which is VOGGN.
        **options: Those of `PosteriorOptimizer`: prior, likelihood, kl_weight, noise, mirrored, plain, seed, ….

    Example:
        >>> import torch, bayesrule as br
        >>> net = torch.nn.Linear(3, 1)
        >>> opt = VOGN(net, n_data=100, lr=1e-2, prior=br.Normal(1.0), likelihood=br.Gaussian(0.1))
        >>> with opt.sampled_params():
        ...     opt.zero_grad()
        ...     opt.nll(net(torch.randn(8, 3)), torch.randn(8, 1)).backward()
        >>> opt.step()
    """

    rule_type = VOGNRule

    def __init__(self, model: nn.Module, *, n_data: int, **options: Any) -> None:
        super().__init__(model, n_data=n_data, **options)
