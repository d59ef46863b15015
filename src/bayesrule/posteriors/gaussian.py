"""A Gaussian posterior: a mean and a structured covariance operator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from bayesrule.errors import ShapeMismatch
from bayesrule.kernels import BiasLaw, StoredParameters
from bayesrule.linalg import MatrixView, event_dims
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.parts import Part, locate
from bayesrule.posteriors.posterior import Posterior
from bayesrule.posteriors.restricted import RestrictedCovariance
from bayesrule.posteriors.work import Work
from bayesrule.random import FromGenerator, NoiseSource
from bayesrule.typing import Contraction

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class GaussianPosterior(Posterior):
    """``N(mean, Σ)``; every family differs only in Σ."""

    mean: Tensor
    covariance: CovarianceOperator
    parts: tuple[Part, ...] = ()
    stored: StoredParameters | None = field(default=None, compare=False, repr=False)
    """The parameter that the mean shows, if it does: for code that gives it its gradient directly."""

    def __post_init__(self) -> None:
        if self.mean.shape != self.covariance.shape:  # a batch of means with one Σ would share its noise
            raise ShapeMismatch(
                f"The mean must have the covariance's shape {tuple(self.covariance.shape)}", got=tuple(self.mean.shape)
            )

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """Dimensions of one draw."""
        return self.covariance.event_dim

    @property
    def variance(self) -> Tensor:
        """``diag Σ``."""
        return self.covariance.diagonal()

    @property
    def noise_shape(self) -> torch.Size:
        """Shape of the standard normals for one draw."""
        return self.covariance.noise_shape

    @property
    def independent(self) -> bool:
        """Whether Σ is diagonal."""
        return self.covariance.independent

    def noise_from(self, source: NoiseSource) -> Tensor:
        """Noise for one draw, in the memory order in which the draw is made."""
        shape = tuple(self.noise_shape)
        if self.covariance.drawn_as_kept and isinstance(source, FromGenerator) and self._kept_transposed:
            return source(shape[::-1], self.noise_law, self.mean).mT
        return source(shape, self.noise_law, self.mean)

    @property
    def _kept_transposed(self) -> bool:
        """Whether the mean shows a parameter that is kept fan-out × fan-in."""
        layout = self.parts[0].layout if len(self.parts) == 1 and self.mean.ndim == 2 else None
        return isinstance(layout, MatrixView) and layout.is_transposed_matrix

    def from_noise(self, noise: Tensor) -> Tensor:
        """``mean + R ε``."""
        fused = None if self.stored is None else self.covariance.fused_draw(self.stored, noise)
        return self.mean + self.covariance.sqrt_matmul(noise) if fused is None else fused

    def log_prob(self, value: Tensor) -> Tensor:
        """``−½[(w−m)ᵀΣ⁻¹(w−m) + log det Σ + d log 2π]``."""
        centred = value - self.mean
        mahalanobis = (centred * self.covariance.solve(centred)).sum(event_dims(self.event_dim))
        return -0.5 * (mahalanobis + self.covariance.logdet() + self.event_shape.numel() * LOG_2PI)

    def entropy(self) -> Tensor:
        """``½[log det Σ + d(1 + log 2π)]``; a lower bound where the operator's `logdet` is one."""
        return 0.5 * (self.covariance.logdet() + self.event_shape.numel() * (1 + LOG_2PI))

    @property
    def structure(self) -> str:
        """The covariance's name."""
        return type(self.covariance).__name__

    def projects(self, contraction: Contraction) -> bool:
        """As the covariance does."""
        return self.covariance.projects(contraction)

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """Local noise, by the covariance's structure."""
        return self.covariance.project(contraction, x)

    def draw_work(self) -> Work:
        """As the covariance counts it, of a home's few entries as a part of a whole model's draw."""
        work, stored = self.covariance.draw_work(), self.stored
        return replace(work, together=self.covariance.drawn_together and stored is not None and stored.few)

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """As the covariance counts it."""
        return self.covariance.projection_work(contraction, x)

    def fused_output(
        self, contraction: Contraction, x: Tensor, noise: NoiseSource, bias: BiasLaw | None = None
    ) -> Tensor | None:
        """As the covariance has it; not of an empty batch, which plain operations take and such code need not."""
        if not x.numel():
            return None
        return self.covariance.fused_output(self.mean, self.stored, contraction, x, noise, bias)

    def fused_sample(self, source: NoiseSource) -> Tensor | None:
        """As the covariance has it."""
        return self.covariance.fused_sample(self.mean, source)

    def fused_divergence(self, centre: float, precision: float) -> Tensor | None:
        """As the covariance has it."""
        return self.covariance.fused_divergence(self.mean, centre, precision)

    def select_rows(self, index: Tensor) -> GaussianPosterior:
        """Some rows of a matrix event, which the covariance must have independent."""
        return GaussianPosterior(self.mean[..., index, :], self.covariance.select_rows(index))

    def marginal(self, name: str) -> GaussianPosterior:
        """The posterior of one parameter of the group, in the same (matrix or vector) view."""
        if len(self.parts) == 1 and self.parts[0].name == name:
            return self
        part, start = locate(name, self.parts, self.event_dim)
        length = part.length(self.event_dim)
        covariance = RestrictedCovariance(self.covariance, start, length)
        return GaussianPosterior(self.mean.narrow(-self.event_dim, start, length), covariance, (part,))
