"""What the Gaussian families share: the way from a gradient and a curvature in θ to the gradient in μ."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam.coordinates import Natural
from bayesrule.expfam.family import ExponentialFamily

Vector = Float[Tensor, " dim"]
Matrix = Float[Tensor, "dim dim"]


class GaussianFamily(ExponentialFamily):
    """N(m, S⁻¹) with more or less of S free; one member is a vector."""

    @abstractmethod
    def mean(self, natural: Natural) -> Float[Tensor, "*batch dim"]:
        """The mean m."""

    @abstractmethod
    def precision_matrix(self, natural: Natural) -> Float[Tensor, "*batch dim dim"]:
        """The precision S, as a whole matrix."""

    @abstractmethod
    def bonnet_price(self, natural: Natural, gradient: Vector, curvature: Matrix) -> Natural:
        """∇_μ E_q[ℓ] from E_q[∇ℓ] and E_q[∇²ℓ], or what stands for them   (Eqs. 10 and 11).

        ∇_μ₁ = E[∇ℓ] − E[∇²ℓ] m and ∇_μ₂ = ½ E[∇²ℓ]. A family takes what it needs: a diagonal one the diagonal of the
        curvature, one with fixed covariance none of it.
        """


def check_precision(mean: Tensor, precision: Tensor, *, matrix: bool) -> None:
    """Refuse a precision that does not fit the mean: in its shape (and its square, for a matrix), or in its type."""
    wanted = tuple(mean.shape) + (tuple(mean.shape[-1:]) if matrix else ())
    if tuple(precision.shape) != wanted:
        batched = f", for each member of the batch: precision.expand{wanted}" if mean.ndim > 1 else ""
        raise ShapeMismatch(
            f"the precision of a mean of shape {tuple(mean.shape)} must have the shape {wanted}",
            got=tuple(precision.shape), remedy=f"Give the precision of {mean.shape[-1]} numbers{batched}.",
        )  # fmt: skip
    if precision.dtype != mean.dtype:
        raise InvalidArgument(
            "mean and precision must have one dtype", got=f"{mean.dtype} and {precision.dtype}",
            remedy="Give precision.to(mean).",
        )  # fmt: skip
