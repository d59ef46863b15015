"""Group ARD: whole rows, columns or input channels share a prior variance, and are pruned together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Posterior
from bayesrule.priors.ard import ARD
from bayesrule.priors.prior import DiagonalNormal, Prior, expected_squares, need_gaussian

Group = Literal["row", "column", "both", "channel"]


@dataclass(frozen=True)
class GroupARD(Prior):
    """``N(0, 1/(τ_i γ_j))``   [Rudnev & Kropotov, Eq. 2].

    With one of τ, γ fixed the other has a closed form, ``1/τ_i = mean_j γ_j (M_ij² + s_ij)``; for both, alternating
    is monotone and reaches the optimum (it scales the matrix ``M² + s`` to unit row and column means, as Sinkhorn
    does), where ``KL = ½[−nΣ log τ − mΣ log γ − log det Σ]``. Only the product is identified:
    γ has geometric mean 1. A vector (a bias) has no rows to group and takes plain `ARD`.

    Attributes:
        group: What shares a variance: ``"row"`` (τ), ``"column"`` (γ), ``"both"``, or ``"channel"``: the rows of one
            input channel of a convolution together.
        learn: ``"closed-form"``, or ``"gradient"`` on log τ and log γ, as in the paper.
        iterations: How often τ and γ are alternated in closed form.
    """

    group: Group = "row"
    learn: Literal["closed-form", "gradient"] = "closed-form"
    iterations: int = 30

    def __post_init__(self) -> None:
        if self.group not in ("row", "column", "both", "channel"):
            raise InvalidArgument('group must be "row", "column", "both" or "channel"', got=repr(self.group))
        if self.learn not in ("closed-form", "gradient"):
            raise InvalidArgument('learn must be "closed-form" or "gradient"', got=repr(self.learn))
        if self.iterations < 1:
            raise InvalidArgument("iterations must be at least 1", got=self.iterations)

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """With the best precisions of its groups, or the learned ones."""
        if need_gaussian(posterior, self).event_dim == 1:
            return ARD().given(posterior, {})
        if self.learn == "closed-form":
            tau, gamma = self._best(posterior)
        else:
            log_tau, log_gamma = hyperparameters["log_tau"], hyperparameters["log_gamma"]
            tau, gamma = log_tau.exp(), (log_gamma - log_gamma.mean((-2, -1), keepdim=True)).exp()
            tau = tau.repeat_interleave(posterior.event_shape[0] // tau.shape[-2], dim=-2)
        precision = tau * gamma if self.group == "both" else (gamma if self.group == "column" else tau)
        return DiagonalNormal(precision.new_zeros(()), precision)

    def hyperparameters(self, posterior: Posterior) -> dict[str, Tensor]:
        """When learned by gradient: ``log τ`` (one for each group of rows) and ``log γ``, from the closed form on."""
        if self.learn == "closed-form" or posterior.event_dim == 1:
            return {}
        tau, gamma = (precision.detach().log() for precision in self._best(posterior))
        return {"log_tau": tau[..., :: self._rows_per_group(posterior), :].clone(), "log_gamma": gamma.clone()}

    def _best(self, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """τ, (…, m, 1), and γ, (…, 1, n), at the optimum."""
        squares = expected_squares(posterior)
        squares = squares.clamp_min(torch.finfo(squares.dtype).tiny)
        gamma = torch.ones_like(squares[..., :1, :])
        tau = torch.ones_like(squares[..., :1])
        if self.group in ("row", "channel"):
            return self._pool_rows(squares.mean(-1, keepdim=True), posterior).reciprocal(), gamma
        if self.group == "column":
            return tau, squares.mean(-2, keepdim=True).reciprocal()
        # By the envelope theorem the KL's gradient does not pass through its minimisers, so none is kept here.
        squares = squares.detach()
        for _ in range(self.iterations):
            tau = (squares @ gamma.mT / gamma.shape[-1]).reciprocal()
            gamma = (tau.mT @ squares / tau.shape[-2]).reciprocal()
        scale = gamma.log().mean(-1, keepdim=True).exp()
        return tau * scale, gamma / scale

    def _pool_rows(self, row_means: Tensor, posterior: Posterior) -> Tensor:
        size = self._rows_per_group(posterior)
        pooled = row_means.unflatten(-2, (-1, size)).mean(-2, keepdim=True)
        return pooled.expand(*pooled.shape[:-2], size, 1).flatten(-3, -2)

    def _rows_per_group(self, posterior: Posterior) -> int:
        if self.group != "channel" or not posterior.parts:
            return 1
        layout = posterior.parts[0].layout
        return layout.rows_per_channel if isinstance(layout, MatrixView) else 1
