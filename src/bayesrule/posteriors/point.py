"""Point: all mass on the mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.posteriors.family import Family
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.posterior import Posterior
from bayesrule.posteriors.work import Work
from bayesrule.typing import Contraction


@dataclass(frozen=True)
class PointPosterior(Posterior):
    """A point estimate: no noise, and by convention no KL."""

    mean: Tensor
    event_dim: int
    parts: tuple[Part, ...] = ()

    @property
    def variance(self) -> Tensor:
        """Zero."""
        return torch.zeros_like(self.mean)

    @property
    def noise_shape(self) -> torch.Size:
        """No noise is needed."""
        return torch.Size((0,))

    @property
    def independent(self) -> bool:
        """Trivially."""
        return True

    def from_noise(self, noise: Tensor) -> Tensor:
        """The point, once for each sample dimension of the (empty) noise."""
        return self.mean.expand(*noise.shape[:-1], *self.mean.shape)

    def select_rows(self, index: Tensor) -> PointPosterior:
        """Some rows of the point."""
        return PointPosterior(self.mean[..., index, :], self.event_dim)

    def log_prob(self, value: Tensor) -> Tensor:
        """Refused: a point has no density."""
        raise Unsupported("A point estimate has no density", remedy="Use the Diagonal family for one.")

    def entropy(self) -> Tensor:
        """Refused: it would be −∞."""
        raise Unsupported("A point estimate has no entropy", remedy="Use the Diagonal family for one.")

    def projects(self, contraction: Contraction) -> bool:
        """Always."""
        return True

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """No noise."""
        return ()

    def draw_work(self) -> Work:
        """None."""
        return Work()

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """None."""
        return Work()


@dataclass(frozen=True)
class Point(Family):
    """The recipe of a point estimate."""

    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Only the mean."""
        return {"mean": mean}

    def build(
        self, parameters: Mapping[str, Tensor], *, event_dim: int, parts: tuple[Part, ...] = ()
    ) -> PointPosterior:
        """The point."""
        return PointPosterior(parameters["mean"], event_dim, parts)
