"""The curvature of all training data around a trained network, by structure, each as its own eigendecomposition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.curvature import Tapped, example_gradients, fan_in_moment, fan_out_moment, squared_gradients
from bayesrule.posteriors import (
    CovarianceOperator,
    DiagonalCovariance,
    EigenKroneckerCovariance,
    FullCovariance,
    GaussianPosterior,
    KTied,
    project,
)

BATCH_OF_ROWS = 2**24
"""Numbers of per-example gradients formed at a time."""


@dataclass(frozen=True)
class DataCurvature(ABC):
    """``H = Q diag(e) Qᵀ``, summed over the training data, so that ``log det(H + δI) = Σ log(e + δ)`` for every δ."""

    spectrum: Tensor

    @abstractmethod
    def covariance(self, precision: Tensor) -> CovarianceOperator:
        """``(H + δI)⁻¹``."""


@dataclass(frozen=True)
class DiagonalCurvature(DataCurvature):
    """H is diagonal."""

    def covariance(self, precision: Tensor) -> DiagonalCovariance:
        """``diag(1/(e + δ))``."""
        return DiagonalCovariance((self.spectrum + precision).rsqrt())


@dataclass(frozen=True)
class TiedCurvature(DiagonalCurvature):
    """H is diagonal, and the posterior the k-tied one nearest in KL(q ‖ p)."""

    rank: int

    def covariance(self, precision: Tensor) -> CovarianceOperator:  # type: ignore[override]
        """The projection, which is also the fixed point of `KTiedVON`."""
        free = super().covariance(precision)
        return project(GaussianPosterior(torch.zeros_like(free.std), free), KTied(self.rank)).posterior.covariance


@dataclass(frozen=True)
class KroneckerCurvature(DataCurvature):
    """``H = A ⊗ S/N``, with the sums ``A = Σ aaᵀ`` and ``S = Σ ggᵀ`` in their eigenbases."""

    fan_in_basis: Float[Tensor, "fan_in fan_in"]
    fan_out_basis: Float[Tensor, "fan_out fan_out"]

    def covariance(self, precision: Tensor) -> EigenKroneckerCovariance:
        """Exactly damped: ``Q diag(1/(e + δ)) Qᵀ``."""
        return EigenKroneckerCovariance(self.fan_in_basis, self.fan_out_basis, 1 / (self.spectrum + precision))


@dataclass(frozen=True)
class FullCurvature(DataCurvature):
    """H has all entries, of one layer or of all."""

    basis: Float[Tensor, "entries entries"]

    def covariance(self, precision: Tensor) -> FullCovariance:
        """``(H + δI)⁻¹`` by its Cholesky factor."""
        matrix = (self.basis / (self.spectrum.flatten() + precision)) @ self.basis.mT
        return FullCovariance(torch.linalg.cholesky((matrix + matrix.mT) / 2), tuple(self.spectrum.shape))


class Gatherer(ABC):
    """Sums over batches for one group of layers."""

    @abstractmethod
    def add(self, tapped: list[Tapped]) -> None:
        """What the group's layers saw in one batch."""

    @abstractmethod
    def curvature(self, examples: int) -> DataCurvature:
        """Of all batches."""


class DiagonalGatherer(Gatherer):
    """``Σ (∇ℓ_i)²``; with a rank, for a k-tied posterior."""

    def __init__(self, rank: int | None = None) -> None:
        self.total, self.rank = torch.zeros(()), rank

    def add(self, tapped: list[Tapped]) -> None:
        """One layer."""
        (layer,) = tapped
        self.total = self.total.to(layer.inputs) + squared_gradients(layer) * layer.examples

    def curvature(self, examples: int) -> DiagonalCurvature:
        """The sum."""
        return DiagonalCurvature(self.total) if self.rank is None else TiedCurvature(self.total, self.rank)


class KroneckerGatherer(Gatherer):
    """``Σ aaᵀ`` and ``Σ ggᵀ``."""

    def __init__(self) -> None:
        self.fan_in, self.fan_out = torch.zeros(()), torch.zeros(())

    def add(self, tapped: list[Tapped]) -> None:
        """One layer."""
        (layer,) = tapped
        self.fan_in = self.fan_in.to(layer.inputs) + fan_in_moment(layer) * layer.examples
        self.fan_out = self.fan_out.to(layer.inputs) + fan_out_moment(layer) * layer.examples

    def curvature(self, examples: int) -> KroneckerCurvature:
        """``A ⊗ S / N``."""
        (a, left), (s, right) = (torch.linalg.eigh(each.double()) for each in (self.fan_in, self.fan_out))
        spectrum = torch.outer(a.clamp_min(0), s.clamp_min(0)) / examples
        return KroneckerCurvature(*(each.to(self.fan_in) for each in (spectrum, left, right)))


class FullGatherer(Gatherer):
    """``Σ ∇ℓ_i ∇ℓ_iᵀ``, over one layer as a matrix event, or several as a vector."""

    def __init__(self, event: tuple[int, ...]) -> None:
        self.total, self.event = torch.zeros(()), event

    def add(self, tapped: list[Tapped]) -> None:
        """Gradients of all layers side by side."""
        cotangents, rows = tapped[0].gradients.shape[0], tapped[0].inputs.shape[0]
        entries = sum(each.inputs.shape[-1] * each.gradients.shape[-1] for each in tapped)
        together = max(1, BATCH_OF_ROWS // (cotangents * entries))
        for start in range(0, rows, together):
            pieces = [Tapped(each.inputs[start : start + together], each.gradients[:, start : start + together], 1)
                      for each in tapped]  # fmt: skip
            gradients = torch.cat([example_gradients(each).flatten(-2).flatten(0, 1) for each in pieces], -1)
            self.total = self.total.to(gradients) + gradients.mT @ gradients

    def curvature(self, examples: int) -> FullCurvature:
        """Its eigendecomposition."""
        values, basis = torch.linalg.eigh(self.total.double())
        return FullCurvature(values.clamp_min(0).to(self.total).reshape(self.event), basis.to(self.total))
