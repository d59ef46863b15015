"""Automatic relevance determination: every weight has its own prior variance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.posteriors import Posterior
from bayesrule.priors.prior import DiagonalNormal, Prior, expected_squares, need_gaussian


@dataclass(frozen=True)
class ARD(Prior):
    """``N(0, 1/α)`` entry by entry at the optimum ``α = 1/(M² + s)``, so ``KL = ½[Σ log(M² + s) − log det Σ]``.

    For a diagonal posterior that is ``½ Σ log(1 + μ²/σ²)``   [Rudnev & Kropotov, Sec. 3.1].
    """

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """The best precision of every entry."""
        # By the envelope theorem the KL's gradient does not pass through its minimiser, so none is kept here.
        squares = expected_squares(need_gaussian(posterior, self)).detach()
        precision = squares.clamp_min(torch.finfo(squares.dtype).tiny).reciprocal()
        return DiagonalNormal(precision.new_zeros(()), precision)
