"""What the Gaussian families share: the way from a gradient and a curvature in θ to the gradient in μ."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor

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
