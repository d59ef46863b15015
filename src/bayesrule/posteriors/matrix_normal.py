"""Matrix normal: one covariance over inputs, one over outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.kernels import BiasLaw, StoredParameters, scaled_normals, seeded_dtype
from bayesrule.linalg import (
    bilinear_sum,
    joint_norm,
    log_diagonal_cholesky,
    scaled_identity_log_cholesky,
    triangular_moments,
)
from bayesrule.posteriors.computed_once import ComputedOnce
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.family import Family, check_matrix, check_positive
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.work import PRODUCTS, Work, drawn_entries
from bayesrule.random import NoiseSource
from bayesrule.typing import Contraction

TRIANGLE = 0.6
"""Of the products with a triangular matrix, those that its blocks leave to be done."""


@dataclass(frozen=True)
class MatrixNormalCovariance(CovarianceOperator):
    """``Σ = AAᵀ ⊗ BBᵀ`` with lower-triangular A (fan-in) and B (fan-out)   [Rudnev & Kropotov, Sec. 3.4]."""

    fan_in_cholesky: Float[Tensor, "*batch fan_in fan_in"]
    fan_out_cholesky: Float[Tensor, "*batch fan_out fan_out"]

    @property
    def shape(self) -> torch.Size:
        """(…, fan-in, fan-out)."""
        return torch.Size((*self.fan_in_cholesky.shape[:-1], self.fan_out_cholesky.shape[-1]))

    def matmul(self, x: Tensor) -> Tensor:
        """``A Aᵀ x B Bᵀ``."""
        return self.fan_in_cholesky @ (self.fan_in_cholesky.mT @ x @ self.fan_out_cholesky) @ self.fan_out_cholesky.mT

    def solve(self, x: Tensor) -> Tensor:
        """``(AAᵀ)⁻¹ x (BBᵀ)⁻¹``."""
        rows = torch.cholesky_solve(x, self.fan_in_cholesky)
        return torch.cholesky_solve(rows.mT, self.fan_out_cholesky).mT

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``A ε Bᵀ``."""
        return self.fan_in_cholesky @ noise @ self.fan_out_cholesky.mT

    def logdet(self) -> Tensor:
        """``2(n Σ log A_ii + m Σ log B_jj)``   [Eq. 3]."""
        fan_in, fan_out = self.event_shape
        return 2 * (fan_out * self._fan_in_moments[1] + fan_in * self._fan_out_moments[1])

    def diagonal(self) -> Tensor:
        """``(AAᵀ)_ii (BBᵀ)_jj``."""
        return self._fan_in_moments[0] @ self._fan_out_moments[0].mT

    def trace(self, precision: Tensor) -> Tensor:
        """``Σ_ij p_ij (AAᵀ)_ii (BBᵀ)_jj``   [Algorithm 1, with 1/σ² for the printed 1/σ]."""
        return bilinear_sum(self._fan_in_moments[0], precision, self._fan_out_moments[0])

    def projects(self, contraction: Contraction) -> bool:
        """Not for grouped layers: outputs of different groups share rows of the weight, so their noises correlate."""
        return contraction.groups == 1

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """``‖Aᵀx‖ · (B ε)ᵀ``: every position has its own scale, all share B."""
        if not self.projects(contraction):
            return super().project(contraction, x)
        rotated = contraction.widen_triangular(x, self.fan_in_cholesky)
        return (OutputNoise(joint_norm(rotated, contraction.channel_dim), self.fan_out_cholesky),)

    def fused_output(
        self, mean: Tensor, stored: StoredParameters | None, contraction: Contraction, x: Tensor, noise: NoiseSource,
        bias: BiasLaw | None = None,
    ) -> Tensor | None:  # fmt: skip
        """For dense layers on a GPU, without a bias."""
        if bias is not None or not self.has_seeded_noise(mean, contraction, x, noise):
            return None
        return self.add_seeded_noise(contraction(x, mean), contraction, x, noise)

    def has_seeded_noise(self, mean: Tensor, contraction: Contraction, x: Tensor, noise: NoiseSource) -> bool:
        """Whether there is `add_seeded_noise` for this layer."""
        factors = self.fan_in_cholesky, self.fan_out_cholesky
        one_matrix = mean.ndim == 2 and contraction.is_product and x.ndim > 1
        return one_matrix and seeded_dtype(x, mean, noise, *factors) is not None

    def add_seeded_noise(self, output: Tensor, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """The noise of `project` on top of an output: its normals come, scaled, from one kernel."""
        with torch.autocast(x.device.type, enabled=False):  # half precision does not hold the squares
            (term,) = self.project(contraction, x.to(self.fan_in_cholesky.dtype))
            variance = term.scale.square().reshape(-1, 1)
        scaled = scaled_normals(variance, self.fan_out_cholesky.shape[-1], output.dtype, noise)
        return torch.addmm(output.flatten(0, -2), scaled, self.fan_out_cholesky.mT).reshape(output.shape)

    def draw_work(self) -> Work:
        """``A ε Bᵀ``: a product with either factor; ε takes no gradient."""
        fan_in, fan_out = self.event_shape
        entries = fan_in * fan_out
        return drawn_entries(entries, 5, entries * ((PRODUCTS - 1) * fan_in + PRODUCTS * fan_out))

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """``Aᵀx``, most of whose zeros are left out, its norms, and the mixing by B."""
        (fan_in, fan_out), rows = self.event_shape, contraction.rows(x)
        widened = 0 if contraction.picks_rows else TRIANGLE * fan_in**2
        reordered = 0 if contraction.is_product or contraction.picks_rows else fan_in**2  # A, as kernels lie
        return Work(
            rows * fan_out, PRODUCTS * rows * (widened + fan_out**2),
            ((3, rows * fan_in), (3, rows * fan_out), (1, reordered)),
        )  # fmt: skip

    @ComputedOnce
    def _fan_in_moments(self) -> tuple[Tensor, Tensor]:
        """``(AAᵀ)_ii`` and ``log det A``."""
        return triangular_moments(self.fan_in_cholesky)

    @ComputedOnce
    def _fan_out_moments(self) -> tuple[Tensor, Tensor]:
        """``(BBᵀ)_jj`` and ``log det B``."""
        return triangular_moments(self.fan_out_cholesky)


def init_cholesky_factors(mean: Tensor, init_std: float) -> dict[str, Tensor]:
    """Both factors ``√init_std · I``, so that every entry starts with standard deviation ``init_std``."""
    fan_in, fan_out = check_matrix(mean, "A matrix normal")
    scale = math.sqrt(init_std)
    return {
        "fan_in_log_cholesky": scaled_identity_log_cholesky(fan_in, scale, mean),
        "fan_out_log_cholesky": scaled_identity_log_cholesky(fan_out, scale, mean),
    }


def build_matrix_normal(parameters: Mapping[str, Tensor]) -> MatrixNormalCovariance:
    """The covariance of unconstrained factors."""
    return MatrixNormalCovariance(
        log_diagonal_cholesky(parameters["fan_in_log_cholesky"]),
        log_diagonal_cholesky(parameters["fan_out_log_cholesky"]),
    )


@dataclass(frozen=True)
class MatrixNormal(Family):
    """Matrix normal with Cholesky factors whose diagonals are optimised as logarithms.

    Attributes:
        init_std: Where the standard deviations start, without correlation.
    """

    init_std: float = 0.01

    def __post_init__(self) -> None:
        check_positive("init_std", self.init_std)

    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Independent entries of standard deviation ``init_std``."""
        return {"mean": mean, **init_cholesky_factors(mean, self.init_std)}

    def build(
        self, parameters: Mapping[str, Tensor], *, event_dim: int = 2, parts: tuple[Part, ...] = ()
    ) -> GaussianPosterior:
        """``MN(mean, AAᵀ, BBᵀ)``."""
        return GaussianPosterior(parameters["mean"], build_matrix_normal(parameters), parts)
