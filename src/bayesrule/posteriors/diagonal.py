"""Diagonal (mean-field): every entry has its own standard deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.kernels import (
    Bias,
    BiasLaw,
    LinkedKL,
    Piece,
    StoredParameters,
    diagonal_divergence,
    diagonal_output,
    diagonal_piece,
    has_fused_divergence,
    linked_diagonal_divergence,
)
from bayesrule.posteriors.family import Family, check_positive
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.independent import IndependentCovariance
from bayesrule.posteriors.logarithms import GivenByLogarithms
from bayesrule.posteriors.parts import Part
from bayesrule.random import NoiseSource, draw
from bayesrule.typing import Contraction


@dataclass(frozen=True)
class DiagonalCovariance(GivenByLogarithms, IndependentCovariance):
    """``Σ = diag(σ²)`` with free σ, over an event of any shape."""

    std: Tensor
    event_dim: int = 2

    @property
    def shape(self) -> torch.Size:
        """That of the standard deviations."""
        return self.shape_of("std")

    def select_rows(self, index: Tensor) -> DiagonalCovariance:
        """σ of those rows."""
        return DiagonalCovariance(self.std[..., index, :])

    def fused_output(
        self, mean: Tensor, stored: StoredParameters | None, contraction: Contraction, x: Tensor, noise: NoiseSource,
        bias: BiasLaw | None = None,
    ) -> Tensor | None:  # fmt: skip
        """For dense layers, without a bias."""
        if bias is not None or not contraction.is_product:
            return None
        return diagonal_output(x, mean, stored, self._given().get("std"), lambda: self.std, noise)

    def fused_divergence(self, mean: Tensor, centre: float, precision: float) -> Tensor | None:
        """`diagonal_divergence`, for one event."""
        log_std = self.log("std")
        if mean.ndim != self.event_dim or not has_fused_divergence(mean, log_std):
            return None
        return diagonal_divergence(mean, log_std, centre, precision)


@dataclass(frozen=True)
class Diagonal(Family):
    """Mean-field Normal: as many standard deviations as means, optimised as logarithms.

    Attributes:
        init_std: Where the standard deviations start.
        init_spread: Standard deviation of their logarithms at the start.
    """

    init_std: float = 0.01
    init_spread: float = 0.1

    def __post_init__(self) -> None:
        check_positive("init_std", self.init_std)

    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """``log σ = log init_std + init_spread · N(0, 1)``."""
        spread = self.init_spread * draw(tuple(mean.shape), "normal", mean, generator)
        return {"mean": mean, "log_std": math.log(self.init_std) + spread}

    def build(
        self, parameters: Mapping[str, Tensor], *, event_dim: int, parts: tuple[Part, ...] = ()
    ) -> GaussianPosterior:
        """``N(mean, diag(exp(log_std)²))``."""
        covariance = DiagonalCovariance.of_logarithms({"std": parameters["log_std"]}, event_dim=event_dim)
        return GaussianPosterior(parameters["mean"], covariance, parts)

    def linked_divergence(self, stored: StoredParameters, centre: float, precision: float) -> LinkedKL | None:
        """`linked_diagonal_divergence`: the two gradients are apart, so the mean may lie as it is kept, log σ not."""
        if not has_fused_divergence(*stored.parameters):
            return None
        return linked_diagonal_divergence(stored, centre, precision)

    def piece(self, stored: StoredParameters) -> Piece | None:
        """`diagonal_piece`."""
        return diagonal_piece(stored)

    def as_bias(self, parameters: tuple[Tensor, ...]) -> Bias | None:
        """Of a vector."""
        mean, log_std = parameters
        return (mean, log_std) if mean.ndim == 1 else None
