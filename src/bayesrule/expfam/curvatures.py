"""What stands for ∇²ℓ in the rule's Gaussian updates: the second of its approximations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.losses import Loss, Matrix, Vector


class Curvature(ABC):
    """An estimate of ∇²ℓ, whose mean over the points at which it is taken stands for E_q[∇²ℓ]."""

    needs_spread: ClassVar[bool] = False
    """Whether it is 0 at the mean, and so of use only away from it."""

    @abstractmethod
    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """The estimate at θ; ``pull`` is S(θ − m) = −∇log q(θ)."""


@dataclass(frozen=True)
class Hessian(Curvature):
    """∇²ℓ(θ) itself   (Eq. 12)."""

    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """See :class:`Curvature`."""
        return loss.hessian(theta)


@dataclass(frozen=True)
class AbsoluteHessian(Curvature):
    """scale·Σ_i |∇²_jj ℓ_i| + ∇²_jj R, on the diagonal, so that precisions stay positive   (below Eq. 36)."""

    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """See :class:`Curvature`."""
        each = loss.example_hessians(theta).diagonal(dim1=-2, dim2=-1)
        return torch.diag(loss.scale * each.abs().sum(0) + loss.regularizer_hessian(theta).diagonal())


@dataclass(frozen=True)
class GaussNewton(Curvature):
    """scale·Σ_i ∇ℓ_i ∇ℓ_iᵀ + ∇²R, from the gradients of single examples   (Eq. 45: OGN and VOGN)."""

    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """See :class:`Curvature`."""
        gradients = loss.example_gradients(theta)
        return loss.scale * gradients.mT @ gradients + loss.regularizer_hessian(theta)


@dataclass(frozen=True)
class SquaredGradient(Curvature):
    """∇ℓ ∇ℓᵀ of the whole (minibatch) loss, the crudest of them   (Eq. 38: RMSprop and Adam)."""

    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """See :class:`Curvature`."""
        return torch.outer(loss.gradient(theta), loss.gradient(theta))


@dataclass(frozen=True)
class TrueFisher(Curvature):
    """scale·Σ_i J_iᵀ F(f_i) J_i + ∇²R with the likelihood's own Fisher matrix in the outputs   (OGGN and VOGGN).

    The generalised Gauss–Newton matrix of a likelihood that is an exponential family in its outputs.
    """

    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """See :class:`Curvature`."""
        if loss.model is None:
            raise InvalidArgument(
                "the true Fisher needs the outputs behind the loss", remedy="Give Loss a model=OutputModel(…)."
            )
        jacobian = torch.func.jacrev(loss.model.outputs)(theta)
        fisher = loss.model.fisher(loss.model.outputs(theta))
        matrix: Float[Tensor, "dim dim"] = torch.einsum("eod,eop,epc->dc", jacobian, fisher, jacobian)
        return loss.scale * matrix + loss.regularizer_hessian(theta)


@dataclass(frozen=True)
class Price(Curvature):
    """½(S(θ−m)∇ℓᵀ + ∇ℓ(θ−m)ᵀS), whose mean over q is E_q[∇²ℓ] by Price's theorem: gradients only   (App. D)."""

    needs_spread = True

    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """See :class:`Curvature`."""
        outer = torch.outer(pull, loss.gradient(theta))
        return 0.5 * (outer + outer.mT)


@dataclass(frozen=True)
class NoCurvature(Curvature):
    """0, for a family whose covariance is fixed   (Eq. 7)."""

    def __call__(self, loss: Loss, theta: Vector, pull: Vector) -> Matrix:
        """See :class:`Curvature`."""
        return theta.new_zeros(theta.shape[0], theta.shape[0])
