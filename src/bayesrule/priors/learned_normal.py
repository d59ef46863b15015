"""A normal prior that learns its own scale, in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.posteriors import GaussianPosterior, Posterior
from bayesrule.priors.prior import DiagonalNormal, Prior, need_gaussian, total_expected_square


@dataclass(frozen=True)
class LearnedNormal(Prior):
    """``N(mean, s²)`` with the s² that minimises the KL: ``s² = Σ E[(w − mean)²] / d``.

    Attributes:
        scope: One scale for each ``"layer"``, or a single one for the whole ``"model"``.
        mean: The centre.
    """

    scope: Literal["layer", "model"] = "layer"
    mean: float = 0.0

    def __post_init__(self) -> None:
        if self.scope not in ("layer", "model"):
            raise InvalidArgument('scope must be "layer" or "model"', got=repr(self.scope))

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """The best scale for this event alone."""
        gaussian = need_gaussian(posterior, self)
        precision = gaussian.event_shape.numel() / total_expected_square(gaussian, self.mean)
        return self._with_precision(gaussian, precision)

    @property
    def sharing(self) -> object:
        """With scope ``"model"``: all learned priors of the same centre."""
        return (type(self), self.mean) if self.scope == "model" else None

    def share(self, posteriors: Iterable[Posterior]) -> Prior:
        """With scope ``"model"``: the best single scale for all of them together."""
        gaussians = [posterior for posterior in posteriors if isinstance(posterior, GaussianPosterior)]
        if self.scope == "layer" or not gaussians:
            return self
        total = torch.stack([total_expected_square(gaussian, self.mean) for gaussian in gaussians]).sum(0)
        entries = sum(gaussian.event_shape.numel() for gaussian in gaussians)
        return _FixedPrecision(self, entries / total)

    def _with_precision(self, gaussian: GaussianPosterior, precision: Tensor) -> DiagonalNormal:
        expanded = precision.reshape(*precision.shape, *(1,) * gaussian.event_dim)
        return DiagonalNormal(gaussian.mean.new_full((), self.mean), expanded)


@dataclass(frozen=True)
class _FixedPrecision(Prior):
    """A learned prior once its shared precision is settled; gradients still flow to the posteriors behind it."""

    learned: LearnedNormal
    precision: Tensor

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        return self.learned._with_precision(need_gaussian(posterior, self), self.precision)
