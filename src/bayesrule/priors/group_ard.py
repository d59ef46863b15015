"""Group ARD: whole rows, columns or input channels share a prior variance, and are pruned together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import GaussianPosterior, Posterior
from bayesrule.priors.ard import ARD
from bayesrule.priors.prior import DiagonalNormal, Prior, expected_squares, kept, need_gaussian

Group = Literal["row", "column", "both", "channel"]
LEARNED = {"row": ("log_tau",), "column": ("log_gamma",), "both": ("log_tau", "log_gamma"), "channel": ("log_tau",)}
"""What each grouping learns."""


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
        if self.group not in LEARNED:
            raise InvalidArgument('group must be "row", "column", "both" or "channel"', got=repr(self.group))
        if self.learn not in ("closed-form", "gradient"):
            raise InvalidArgument('learn must be "closed-form" or "gradient"', got=repr(self.learn))
        if self.iterations < 1:
            raise InvalidArgument("iterations must be at least 1", got=self.iterations)

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """With the best precisions of its groups, or the learned ones."""
        if need_gaussian(posterior, self).event_dim == 1:
            return ARD().given(posterior, {})
        tau, gamma = self._best(posterior) if self.learn == "closed-form" else self._learned(hyperparameters)
        precision = tau * gamma if self.group == "column" else self._spread(tau, posterior) * gamma
        return DiagonalNormal(precision.new_zeros(()), precision)

    def hyperparameters(self, posterior: Posterior) -> dict[str, Tensor]:
        """When learned by gradient: ``log τ`` (one for each group of rows) and ``log γ``, from the closed form on."""
        if self.learn == "closed-form" or posterior.event_dim == 1 or not isinstance(posterior, GaussianPosterior):
            return {}
        found = dict(zip(("log_tau", "log_gamma"), self._best(posterior), strict=True))
        return {name: nn.Parameter(found[name].detach().log()) for name in LEARNED[self.group]}

    def _learned(self, hyperparameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logs = kept(self, hyperparameters, *LEARNED[self.group])
        if self.group == "both":
            return logs[0].exp(), (logs[1] - logs[1].mean(-1, keepdim=True)).exp()
        one = logs[0].new_ones((1, 1))
        return (one, logs[0].exp()) if self.group == "column" else (logs[0].exp(), one)

    def _best(self, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """τ of every group of rows, (…, groups, 1), and γ, (…, 1, n), at the optimum; 1 where one is not used."""
        # By the envelope theorem the KL's gradient does not pass through its minimisers, so none is kept here.
        squares = expected_squares(posterior).detach()
        squares = squares.clamp_min(torch.finfo(squares.dtype).tiny)
        one = squares.new_ones((1, 1))
        if self.group in ("row", "channel"):
            return self._pool(squares.mean(-1, keepdim=True), posterior).reciprocal(), one
        if self.group == "column":
            return one, squares.mean(-2, keepdim=True).reciprocal()
        gamma = torch.ones_like(squares[..., :1, :])
        for _ in range(self.iterations):
            tau = (squares @ gamma.mT / gamma.shape[-1]).reciprocal()
            gamma = (tau.mT @ squares / tau.shape[-2]).reciprocal()
        scale = gamma.log().mean(-1, keepdim=True).exp()
        return tau * scale, gamma / scale

    def _pool(self, rows: Tensor, posterior: Posterior) -> Tensor:
        """The mean over each group of rows."""
        lengths, sizes = self._runs(posterior)
        runs = zip(rows.split(lengths, dim=-2), sizes, strict=True)
        return torch.cat([run.unflatten(-2, (-1, size)).mean(-2) for run, size in runs], dim=-2)

    def _spread(self, groups: Tensor, posterior: Posterior) -> Tensor:
        """One number for each group of rows, repeated over its rows."""
        lengths, sizes = self._runs(posterior)
        runs = groups.split([length // size for length, size in zip(lengths, sizes, strict=True)], dim=-2)
        return torch.cat([run.repeat_interleave(size, dim=-2) for run, size in zip(runs, sizes, strict=True)], dim=-2)

    def _runs(self, posterior: Posterior) -> tuple[list[int], list[int]]:
        """The rows of every part, and how many neighbours of them are one group; the row of a bias is one."""
        if self.group != "channel" or not posterior.parts:
            return [posterior.event_shape[0]], [1]
        layouts = [part.layout for part in posterior.parts]
        sizes = [layout.rows_per_channel if isinstance(layout, MatrixView) else 1 for layout in layouts]
        return [part.length(posterior.event_dim) for part in posterior.parts], sizes
