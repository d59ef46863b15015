"""Matrix normal plus a diagonal: a family that contains both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.kernels import BiasLaw, StoredParameters
from bayesrule.linalg import broadcast_sum
from bayesrule.posteriors.diagonal import DiagonalCovariance
from bayesrule.posteriors.eigen_kronecker import EigenKroneckerCovariance
from bayesrule.posteriors.family import Family, check_positive
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.ktied import KTiedCovariance
from bayesrule.posteriors.matrix_normal import MatrixNormalCovariance, build_matrix_normal, init_cholesky_factors
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.sum import SumCovariance
from bayesrule.random import NoiseSource
from bayesrule.typing import Contraction


class _MatrixNormalSum(SumCovariance):
    """A matrix normal and a diagonal."""

    kronecker: MatrixNormalCovariance

    def fused_output(
        self, mean: Tensor, stored: StoredParameters | None, contraction: Contraction, x: Tensor, noise: NoiseSource,
        bias: BiasLaw | None = None,
    ) -> Tensor | None:  # fmt: skip
        """The diagonal's, with the matrix normal's noise on top, where a GPU makes both."""
        if bias is not None or not self.kronecker.has_seeded_noise(mean, contraction, x, noise):
            return None
        output = self.terms[1].fused_output(mean, None, contraction, x, noise)
        return None if output is None else self.kronecker.add_seeded_noise(output, contraction, x, noise)


@dataclass(frozen=True)
class MatrixNormalFreeDiagonalCovariance(_MatrixNormalSum):
    """``Σ = K + D``, K matrix normal, D a free diagonal: its determinant has a bound, its inverse no cheap form."""

    kronecker: MatrixNormalCovariance
    free: DiagonalCovariance
    exact_logdet = False

    @property
    def terms(self) -> tuple[MatrixNormalCovariance, DiagonalCovariance]:
        """K and D."""
        return self.kronecker, self.free

    def solve(self, x: Tensor) -> Tensor:
        """Refused."""
        raise Unsupported(
            "A matrix normal plus a free diagonal has no cheap inverse, and so no density",
            remedy='Use MatrixNormalDiagonal(diagonal="kronecker"), which has both exactly.',
        )

    def logdet(self) -> Tensor:
        """A lower bound: ``log det(K + D) ≥ d · log(e^{log det K / d} + e^{log det D / d})``   [Minkowski]."""
        entries = self.event_shape.numel()
        return entries * torch.logaddexp(self.kronecker.logdet() / entries, self.free.logdet() / entries)


@dataclass(frozen=True)
class MatrixNormalKroneckerDiagonalCovariance(_MatrixNormalSum):
    """``Σ = K + D``, ``D = d_in ⊗ d_out``: a Kronecker product of two diagonals, which keeps everything exact.

    The two pencils ``AAᵀ u = λ d_in u`` and ``BBᵀ v = κ d_out v`` are diagonalised apart, and
    ``log det Σ = Σ_ij log(1 + λ_i κ_j) + log det D``.
    """

    kronecker: MatrixNormalCovariance
    diagonal_factors: KTiedCovariance

    def __post_init__(self) -> None:
        if self.diagonal_factors.fan_in_factor.shape[-1] != 1:
            raise InvalidArgument(
                "The diagonal must be one Kronecker product: standard deviations of rank 1",
                got=f"rank {self.diagonal_factors.fan_in_factor.shape[-1]}",
            )

    @property
    def terms(self) -> tuple[MatrixNormalCovariance, KTiedCovariance]:
        """K and D; D's standard deviations have rank 1."""
        return self.kronecker, self.diagonal_factors

    def solve(self, x: Tensor) -> Tensor:
        """In the common eigenbasis of the two pencils, differentiable twice.

        Eigenvectors have no derivative where eigenvalues coincide, as all do at the start, but ``y = Σ⁻¹x`` has. So the
        eigenbasis gives a constant ``P = Σ⁻¹`` and each Newton step ``y ← y + P(x − Σy)``, which leaves the value as it
        is, one more order of derivatives.
        """
        with torch.no_grad():
            constant = self.eigen()
            solution = constant.solve(x)
        for _ in range(2):
            solution = solution + constant.solve(x - self.matmul(solution))
        return solution

    def logdet(self) -> Tensor:
        """Exact; it needs eigenvalues only, whose gradient is finite even where they coincide."""
        diagonal = self._diagonal_in_double()
        fan_in, fan_out = (torch.linalg.eigvalsh(pencil) for pencil in self._pencils(diagonal))
        spectrum = 1 + fan_in.clamp_min(0)[..., :, None] * fan_out.clamp_min(0)[..., None, :]
        total = broadcast_sum(spectrum.log(), self.event_shape) + diagonal.logdet()
        return total.to(self.diagonal_factors.fan_in_factor.dtype)

    def eigen(self) -> EigenKroneckerCovariance:
        """The same covariance as ``(L ⊗ R) diag(1 + λκ) (L ⊗ R)ᵀ``."""
        scales = self.diagonal_factors.fan_in_factor, self.diagonal_factors.fan_out_factor
        (fan_in, left), (fan_out, right) = (
            torch.linalg.eigh(pencil) for pencil in self._pencils(self._diagonal_in_double())
        )
        spectrum = 1 + fan_in[..., :, None] * fan_out[..., None, :]
        found = scales[0] * left, scales[1] * right, spectrum
        return EigenKroneckerCovariance(*(tensor.to(scales[0].dtype) for tensor in found))

    def _diagonal_in_double(self) -> KTiedCovariance:
        """D, for the eigenvalues and what is added to them.

        ``λ_i κ_j`` can be large where ``λ_i`` is below the rounding of the largest λ: in single precision such
        eigenvalues are lost, and with them a tenth of the gradient at scales over five orders of magnitude.
        """
        return KTiedCovariance(
            self.diagonal_factors.fan_in_factor.double(), self.diagonal_factors.fan_out_factor.double()
        )

    def _pencils(self, diagonal: KTiedCovariance) -> tuple[Tensor, Tensor]:
        """``D^{-½} AAᵀ D^{-½}`` for either side."""
        fan_in = self.kronecker.fan_in_cholesky.double() / diagonal.fan_in_factor
        fan_out = self.kronecker.fan_out_cholesky.double() / diagonal.fan_out_factor
        return fan_in @ fan_in.mT, fan_out @ fan_out.mT


@dataclass(frozen=True)
class MatrixNormalDiagonal(Family):
    """Matrix normal plus a diagonal, a superset of both.

    Attributes:
        diagonal: ``"kronecker"``, a Kronecker product of two diagonals, with an exact KL; or ``"free"``, one variance
            for each entry, whose KL is an upper bound.
        init_std: Where the standard deviations start; the two terms share the variance evenly.
    """

    diagonal: Literal["kronecker", "free"] = "kronecker"
    init_std: float = 0.01

    def __post_init__(self) -> None:
        check_positive("init_std", self.init_std)
        if self.diagonal not in ("kronecker", "free"):
            raise InvalidArgument('diagonal must be "kronecker" or "free"', got=repr(self.diagonal))

    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Independent entries of standard deviation ``init_std``."""
        term_std = self.init_std / math.sqrt(2)
        parameters = {"mean": mean, **init_cholesky_factors(mean, term_std)}
        if self.diagonal == "free":
            return parameters | {"log_std": torch.full_like(mean, math.log(term_std))}
        half = 0.5 * math.log(term_std)
        return parameters | {
            "fan_in_log_std": mean.new_full((mean.shape[0], 1), half),
            "fan_out_log_std": mean.new_full((mean.shape[1], 1), half),
        }

    def build(
        self, parameters: Mapping[str, Tensor], *, event_dim: int = 2, parts: tuple[Part, ...] = ()
    ) -> GaussianPosterior:
        """``N(mean, AAᵀ ⊗ BBᵀ + D)``."""
        kronecker = build_matrix_normal(parameters)
        covariance: SumCovariance
        if self.diagonal == "free":
            free = DiagonalCovariance.of_logarithms({"std": parameters["log_std"]}, event_dim=2)
            covariance = MatrixNormalFreeDiagonalCovariance(kronecker, free)
        else:
            factors = KTiedCovariance.of_logarithms(
                {f"fan_{side}_factor": parameters[f"fan_{side}_log_std"] for side in ("in", "out")}
            )
            covariance = MatrixNormalKroneckerDiagonalCovariance(kronecker, factors)
        return GaussianPosterior(parameters["mean"], covariance, parts)
