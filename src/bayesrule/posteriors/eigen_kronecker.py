"""Kronecker bases with a free spectrum: K-FAC with exact damping, EK-FAC, and their inverses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.linalg import safe_sqrt
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.work import PRODUCTS, Work, drawn_entries
from bayesrule.typing import Contraction


@dataclass(frozen=True)
class EigenKroneckerCovariance(CovarianceOperator):
    """``Σ = (L ⊗ R) diag(s) (L ⊗ R)ᵀ`` with invertible bases and a spectrum of one number per entry.

    Orthogonal bases (the eigenvectors of K-FAC's factors) make it K-FAC with exact damping, ``s = 1/(aᵢgⱼ + γ)``, and
    EK-FAC; general ones come from a pencil of two symmetric matrices.
    """

    fan_in_basis: Float[Tensor, "*batch fan_in fan_in"]
    fan_out_basis: Float[Tensor, "*batch fan_out fan_out"]
    spectrum: Float[Tensor, "*batch fan_in fan_out"]

    @property
    def shape(self) -> torch.Size:
        """That of the spectrum."""
        return self.spectrum.shape

    def matmul(self, x: Tensor) -> Tensor:
        """``L (s ∘ (Lᵀ x R)) Rᵀ``."""
        return self._leave(self.spectrum * (self.fan_in_basis.mT @ x @ self.fan_out_basis))

    def solve(self, x: Tensor) -> Tensor:
        """``L⁻ᵀ ((L⁻¹ x R⁻ᵀ) / s) R⁻¹``."""
        inside = torch.linalg.solve(self.fan_out_basis, torch.linalg.solve(self.fan_in_basis, x).mT).mT / self.spectrum
        return torch.linalg.solve(self.fan_out_basis.mT, torch.linalg.solve(self.fan_in_basis.mT, inside).mT).mT

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``L (√s ∘ ε) Rᵀ``."""
        return self._leave(self.spectrum.sqrt() * noise)

    def logdet(self) -> Tensor:
        """``Σ log s + 2(n log|det L| + m log|det R|)``; the bases add nothing when they are orthogonal."""
        fan_in, fan_out = self.event_shape
        bases = (
            fan_out * torch.linalg.slogdet(self.fan_in_basis).logabsdet
            + fan_in * torch.linalg.slogdet(self.fan_out_basis).logabsdet
        )
        return self.spectrum.log().sum((-2, -1)) + 2 * bases

    def diagonal(self) -> Tensor:
        """``L² s R²ᵀ``."""
        return self.fan_in_basis.square() @ self.spectrum @ self.fan_out_basis.square().mT

    def projects(self, contraction: Contraction) -> bool:
        """Not for grouped layers: outputs of different groups share rows of the weight, so their noises correlate."""
        return contraction.groups == 1

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """``(√((xᵀL)² s) ∘ ε) Rᵀ``: diagonal noise in the rotated outputs."""
        if not self.projects(contraction):
            return super().project(contraction, x)
        rotated = contraction.widen(x, self.fan_in_basis).square()
        return (OutputNoise(safe_sqrt(contraction.mix(rotated, self.spectrum.mT)), self.fan_out_basis),)

    def draw_work(self) -> Work:
        """``L (√s ∘ ε) Rᵀ``: a product with either basis."""
        (fan_in, fan_out), entries = self.event_shape, self.event_shape.numel()
        return drawn_entries(entries, 7, PRODUCTS * entries * (fan_in + fan_out))

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """``xᵀL``, the mixing of its squares by the spectrum, and that of the noise by R."""
        (fan_in, fan_out), rows = self.event_shape, contraction.rows(x)
        widened = 0 if contraction.picks_rows else fan_in**2
        products = PRODUCTS * rows * (widened + fan_in * fan_out + fan_out**2)
        return Work(rows * fan_out, products, ((3, rows * fan_in), (5, rows * fan_out)))

    def inverse(self) -> EigenKroneckerCovariance:
        """``Σ⁻¹``, in the dual bases: what turns a curvature into a covariance."""
        left, right = torch.linalg.inv(self.fan_in_basis).mT, torch.linalg.inv(self.fan_out_basis).mT
        return EigenKroneckerCovariance(left, right, self.spectrum.reciprocal())

    @staticmethod
    def from_factors(
        fan_in: Float[Tensor, "*batch fan_in fan_in"],
        fan_out: Float[Tensor, "*batch fan_out fan_out"],
        damping: float | Tensor = 0.0,
    ) -> EigenKroneckerCovariance:
        """``fan_in ⊗ fan_out + damping · I``, exactly, from two symmetric positive semi-definite factors."""
        (a, left), (g, right) = torch.linalg.eigh(fan_in), torch.linalg.eigh(fan_out)
        return EigenKroneckerCovariance(
            left, right, a.clamp_min(0)[..., :, None] * g.clamp_min(0)[..., None, :] + damping
        )

    def _leave(self, inside: Tensor) -> Tensor:
        return self.fan_in_basis @ inside @ self.fan_out_basis.mT


@dataclass(frozen=True)
class TurnedEigenKroneckerCovariance(EigenKroneckerCovariance):
    """The same law, with draws that do not depend on which eigenvectors were found.

    Where eigenvalues coincide, as those of units that are off, eigenvectors are arbitrary, and a rounding turns them.
    With bases ``L = K E`` of orthogonal eigenvectors E and a K that does not know them, ``L √s Eᵀ`` is a root of Σ in
    which they cancel.
    """

    fan_in_turn: Float[Tensor, "*batch fan_in fan_in"]
    fan_out_turn: Float[Tensor, "*batch fan_out fan_out"]

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``L (√s ∘ (E_inᵀ ε E_out)) Rᵀ``."""
        return super().sqrt_matmul(self.fan_in_turn.mT @ noise @ self.fan_out_turn)

    def draw_work(self) -> Work:
        """Twice as many products."""
        (fan_in, fan_out), entries = self.event_shape, self.event_shape.numel()
        return drawn_entries(entries, 7, 2 * PRODUCTS * entries * (fan_in + fan_out))
