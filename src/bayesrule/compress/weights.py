"""The weights of a model that can be compressed, seen as matrices of standard deviations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.compress.spectrum import explained_variance
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import ClippedLowRankCovariance, GaussianPosterior, KTiedCovariance, Posterior


@dataclass(frozen=True)
class Weight:
    """One weight's standard deviations.

    Attributes:
        name: Of its group.
        std: In double precision.
        dtype: In which the model keeps them.
        largest_rank: The rank a matrix of the weight's shape can have.
        rank: The number of columns of its factors, if they are kept as such.
        explained: Explained variance per singular value.
    """

    name: str
    std: Float[Tensor, "fan_in fan_out"]
    dtype: torch.dtype
    largest_rank: int
    rank: int | None
    explained: Float[Tensor, " ranks"]

    @property
    def spread_numbers(self) -> int:
        """Numbers its standard deviations are kept as."""
        return self.std.numel() if self.rank is None else self.numbers_at(self.rank)

    def numbers_at(self, rank: int) -> int:
        """Numbers its standard deviations would be kept as: ``k(m + n)``."""
        return rank * sum(self.std.shape)

    def explained_by(self, rank: int) -> float:
        """The share of ``Σ S²`` that this rank keeps."""
        return float(self.explained[:rank].sum())

    def why_keep(self, rank: int) -> str:
        """Why it cannot be truncated to this rank, if so."""
        if self.largest_rank < rank:
            return f"its rank is at most {self.largest_rank}"
        return f"its rank is {self.rank} already" if self.rank is not None and self.rank <= rank else ""


def matrix_weights(posteriors: Mapping[str, Posterior]) -> dict[str, Weight]:
    """Every weight, by its group's name; vectors (biases) are left out, and correlated posteriors refused."""
    checked = {name: _independent(name, posterior) for name, posterior in posteriors.items()}
    return {name: _weight(name, posterior) for name, posterior in checked.items() if posterior.event_dim == 2}


def _independent(name: str, posterior: Posterior) -> GaussianPosterior:
    if not isinstance(posterior, GaussianPosterior) or not posterior.independent:
        raise Unsupported(
            f"Only independent standard deviations can be compressed, and those of {name!r} are not",
            got=posterior.structure,
            remedy="Convert the network with br.Diagonal(); br.KTied(rank) trains low-rank ones directly.",
        )
    return posterior


def _weight(name: str, posterior: GaussianPosterior) -> Weight:
    std, covariance = posterior.stddev, posterior.covariance
    if not bool((std > 0).all() & std.isfinite().all()):
        raise InvalidArgument(
            f"The standard deviations of {name!r} must be positive and finite to be compressed",
            got=f"values from {float(std.min())} to {float(std.max())}", remedy="Go back to a model that trained well.",
        )  # fmt: skip
    rank = None
    if isinstance(covariance, KTiedCovariance | ClippedLowRankCovariance):
        rank = covariance.fan_in_factor.shape[-1]
    layout = posterior.parts[0].layout if posterior.parts else None
    # A bias that is a further row of its weight adds nothing to the rank that the family may have.
    sides = (layout.fan_in, layout.fan_out) if isinstance(layout, MatrixView) else tuple(std.shape)
    return Weight(name, std.double(), std.dtype, min(sides), rank, explained_variance(std))
