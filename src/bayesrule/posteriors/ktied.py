"""k-tied Normal: a standard-deviation matrix of rank k."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.kernels import (
    BiasLaw,
    LinkedKL,
    Piece,
    StoredParameters,
    drawn_by_operator,
    has_fused_divergence,
    is_compiled_on_cpu,
    ktied_divergence,
    ktied_output,
    ktied_piece,
    ktied_weight,
    linked_ktied_divergence,
    pair_products,
    sum_log_product,
)
from bayesrule.linalg import bilinear_sum, sum_of_squares
from bayesrule.posteriors.family import Family, check_matrix, check_positive
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.independent import IndependentCovariance
from bayesrule.posteriors.logarithms import GivenByLogarithms
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.work import PRODUCTS, Work
from bayesrule.random import NoiseSource, draw
from bayesrule.typing import Contraction


@dataclass(frozen=True)
class KTiedCovariance(GivenByLogarithms, IndependentCovariance):
    """``Σ = diag(S²)``, ``S = U Vᵀ`` with positive factors   [k-tied Normal, Sec. 3].

    ``S²`` is a sum over pairs, ``S²_ij = Σ_{a≤c} w_ac (u_ia u_ic)(v_ja v_jc)``, so traces and local noise cost
    O(k²(m + n)) and never form ``S``; only `sqrt_matmul`, `matmul`, `solve` and `diagonal`, whose results are m × n
    anyway, do.
    """

    drawn_as_kept = True
    drawn_together = True
    fan_in_factor: Float[Tensor, "*batch fan_in k"]
    fan_out_factor: Float[Tensor, "*batch fan_out k"]

    @property
    def shape(self) -> torch.Size:
        """(…, fan-in, fan-out)."""
        return torch.Size((*self.shape_of("fan_in_factor")[:-1], self.shape_of("fan_out_factor")[-2]))

    @property
    def std(self) -> Tensor:  # type: ignore[override]
        """``U Vᵀ``."""
        return self.fan_in_factor @ self.fan_out_factor.mT

    def select_rows(self, index: Tensor) -> KTiedCovariance:
        """Those rows of the fan-in factor, without ``S``."""
        return KTiedCovariance(self.fan_in_factor[..., index, :], self.fan_out_factor)

    def logdet(self) -> Tensor:
        """``2 Σ log(U Vᵀ)``, in chunks."""
        return 2 * sum_log_product(self.fan_in_factor, self.fan_out_factor)

    def trace(self, precision: Tensor) -> Tensor:
        """``Σ_ij p_ij S²_ij`` through the pairs, without ``S``."""
        return bilinear_sum(self._fan_in_pairs, precision, self._fan_out_pairs)

    def output_variance(self, contraction: Contraction, x: Tensor) -> Tensor:
        """``op(x², UU) VVᵀ``: k(k+1)/2 narrow contractions instead of one with S²."""
        narrow = contraction.widen(contraction.square(x), self._fan_in_pairs)
        return contraction.mix(narrow, self._fan_out_pairs)

    def draw_work(self) -> Work:
        """A pass over the weight each way, and small operations on the factors, as in the compiled code of a CPU."""
        entries = self.event_shape.numel()
        return Work(entries, passes=((2, entries), (8, self._factor_entries), (5, 0)))

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """For every pair of columns, k(k+1)/2, a product with each input and output of a row; and what makes pairs."""
        (fan_in, fan_out), rank = self.event_shape, self.shape_of("fan_in_factor")[-1]
        pairs, rows = rank * (rank + 1) // 2, contraction.rows(x)
        widened = 0 if contraction.picks_rows else fan_in * contraction.groups
        inputs, outputs, small = (2, 1, 20) if contraction.is_product else (5, 5, 48)  # a dense layer is one node
        return Work(
            rows * fan_out, PRODUCTS * rows * pairs * (widened + fan_out),
            ((inputs, x.numel()), (outputs, rows * fan_out), (small, self._factor_entries)),
        )  # fmt: skip

    @property
    def _factor_entries(self) -> int:
        return self.shape_of("fan_in_factor").numel() + self.shape_of("fan_out_factor").numel()

    def fused_draw(self, stored: StoredParameters, noise: Tensor) -> Tensor | None:
        """For one draw of one matrix."""
        return ktied_weight(stored, noise)

    def fused_sample(self, mean: Tensor, source: NoiseSource) -> Tensor | None:
        """For one matrix, in compiled code."""
        if not torch.compiler.is_compiling():
            return None
        drawn = drawn_by_operator(mean.mT, *self._logs, source)
        return None if drawn is None else drawn.mT

    def fused_output(
        self, mean: Tensor, stored: StoredParameters | None, contraction: Contraction, x: Tensor, noise: NoiseSource,
        bias: BiasLaw | None = None,
    ) -> Tensor | None:  # fmt: skip
        """For dense layers."""
        if not contraction.is_product:
            return None
        return ktied_output(x, mean, stored, self._logs, noise, bias)

    def fused_divergence(self, mean: Tensor, centre: float, precision: float) -> Tensor | None:
        """For one matrix."""
        logs = self._logs
        if mean.ndim != 2 or not (has_fused_divergence(mean, *logs) or is_compiled_on_cpu(mean, *logs)):
            return None
        squares = sum_of_squares(mean, 2, mean.new_full((), centre) if centre else None)
        return ktied_divergence(*logs, precision) + 0.5 * precision * squares

    @property
    def _logs(self) -> tuple[Tensor, Tensor]:
        return self.log("fan_in_factor"), self.log("fan_out_factor")

    @property
    def _fan_in_pairs(self) -> Tensor:
        return pair_products(self.fan_in_factor, 1.0)

    @property
    def _fan_out_pairs(self) -> Tensor:
        return pair_products(self.fan_out_factor, 2.0)  # a pair stands for both its orders


@dataclass(frozen=True)
class KTied(Family):
    """Normal whose standard deviations are the rank-k matrix ``U Vᵀ``; the factors are optimised as logarithms.

    Attributes:
        rank: k, usually 2 or 3.
        init_std: Mean of the standard deviations at the start.
        init_spread: Standard deviation of the factors' logarithms at the start.
    """

    rank: int = 2
    init_std: float = 0.01
    init_spread: float = 0.1

    def __post_init__(self) -> None:
        check_positive("init_std", self.init_std)
        if self.rank % 1:
            raise InvalidArgument("The rank of a k-tied posterior is a whole number", got=repr(self.rank))
        if self.rank < 1:
            raise InvalidArgument("The rank of a k-tied posterior must be at least 1", got=self.rank)

    def init(self, mean: Tensor, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """``log u, log v = ½(log init_std − log k) + init_spread · N(0, 1)``   [App. D]."""
        fan_in, fan_out = check_matrix(mean, "KTied")
        if self.rank > min(fan_in, fan_out):
            raise InvalidArgument(
                f"A {fan_in} × {fan_out} matrix has rank at most {min(fan_in, fan_out)}", got=f"rank {self.rank}",
                remedy=f"Use a rank of at most {min(fan_in, fan_out)}, or the Diagonal family.",
            )  # fmt: skip
        centre = 0.5 * (math.log(self.init_std) - math.log(self.rank))
        log_factor = [
            centre + self.init_spread * draw((size, self.rank), "normal", mean, generator) for size in (fan_in, fan_out)
        ]
        return {"mean": mean, "fan_in_log_factor": log_factor[0], "fan_out_log_factor": log_factor[1]}

    def build(
        self, parameters: Mapping[str, Tensor], *, event_dim: int = 2, parts: tuple[Part, ...] = ()
    ) -> GaussianPosterior:
        """``N(mean, diag((U Vᵀ)²))``."""
        covariance = KTiedCovariance.of_logarithms(
            {f"fan_{side}_factor": parameters[f"fan_{side}_log_factor"] for side in ("in", "out")}
        )
        return GaussianPosterior(parameters["mean"], covariance, parts)

    def linked_divergence(self, stored: StoredParameters, centre: float, precision: float) -> LinkedKL | None:
        """`linked_ktied_divergence`, for a prior around zero."""
        if centre or not has_fused_divergence(*stored.parameters):
            return None
        return linked_ktied_divergence(stored, precision)

    def piece(self, stored: StoredParameters) -> Piece | None:
        """`ktied_piece`."""
        return ktied_piece(stored)
