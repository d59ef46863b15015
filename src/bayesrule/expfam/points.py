"""Where a gradient is taken to stand for its mean over q: the first of the rule's approximations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.expfam.coordinates import Natural
from bayesrule.expfam.curvatures import Curvature
from bayesrule.expfam.finite_mixture import FixedWeightsMixture
from bayesrule.expfam.gaussian import GaussianFamily
from bayesrule.expfam.losses import Loss
from bayesrule.expfam.precision import correlate
from bayesrule.random import FromGenerator, NoiseSource

Weighted = tuple[Float[Tensor, "points dim"], Float[Tensor, " points"]]


class Where(ABC):
    """Points θ_i and weights w_i with Σ_i w_i f(θ_i) ≈ E_q[f(θ)]."""

    @abstractmethod
    def __call__(self, family: GaussianFamily, natural: Natural, noise: NoiseSource) -> Weighted:
        """The points and their weights."""


@dataclass(frozen=True)
class Delta(Where):
    """The mean alone: the delta method   (App. C)."""

    def __call__(self, family: GaussianFamily, natural: Natural, noise: NoiseSource) -> Weighted:
        """See :class:`Where`."""
        mean = family.mean(natural)
        return mean.unsqueeze(0), mean.new_ones(1)


@dataclass(frozen=True)
class MonteCarlo(Where):
    """Draws from q   (VOGN, whose noise has covariance S⁻¹)."""

    samples: int = 1

    def __post_init__(self) -> None:
        check_count("The number of samples", self.samples)

    def __call__(self, family: GaussianFamily, natural: Natural, noise: NoiseSource) -> Weighted:
        """See :class:`Where`."""
        draws = family.sample(natural, noise, (self.samples,))
        return draws, draws.new_full((self.samples,), 1 / self.samples)


@dataclass(frozen=True)
class GaussHermite(Where):
    """A tensor grid that is exact for polynomials up to degree 2·order − 1 in each direction; orderᵈⁱᵐ points."""

    order: int = 20

    def __post_init__(self) -> None:
        check_count("The order of the quadrature", self.order)

    def __call__(self, family: GaussianFamily, natural: Natural, noise: NoiseSource) -> Weighted:
        """See :class:`Where`."""
        mean, cholesky = family.mean(natural), torch.linalg.cholesky(family.precision_matrix(natural))
        nodes, weights = standard_normal_grid(self.order, mean)
        grid = torch.cartesian_prod(*[nodes] * mean.shape[-1]).reshape(-1, mean.shape[-1])
        products = torch.cartesian_prod(*[weights] * mean.shape[-1]).reshape(-1, mean.shape[-1]).prod(-1)
        return mean + correlate(cholesky, grid), products


def check_count(name: str, value: object) -> None:
    """Refuse what is not a positive whole number."""
    if not isinstance(value, Integral) or value < 1:
        raise InvalidArgument(f"{name} must be a whole number, 1 or more", got=value, remedy="Take 20, say.")


def standard_normal_grid(order: int, like: Tensor) -> tuple[Float[Tensor, " order"], Float[Tensor, " order"]]:
    """Nodes and weights of Gauss–Hermite quadrature for N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(order)
    return torch.as_tensor(nodes).to(like), torch.as_tensor(weights / weights.sum()).to(like)


def gaussian_gradient(
    family: GaussianFamily,
    natural: Natural,
    loss: Loss,
    where: Where,
    curvature: Curvature,
    noise: NoiseSource | None = None,
) -> Natural:
    """∇_μ E_q[ℓ] for a Gaussian q, from gradients and curvatures of ℓ   (Eqs. 10 and 11).

    Every Gaussian row of the paper's Table 1 is a choice of ``family`` × ``where`` × ``curvature``.
    """
    return _gradients(family, [natural], loss, where, curvature, noise)[0]


def mixture_gradient(
    mixture: FixedWeightsMixture,
    natural: Natural,
    loss: Loss,
    where: Where,
    curvature: Curvature,
    noise: NoiseSource | None = None,
) -> Natural:
    """∇_{μ_k} (E_q[ℓ] − H(q)) for a mixture of Gaussians, all k   (Eqs. 28 to 30).

    Each component sees the loss ℓ + log q; ∇_{μ_k} has a factor 1/π_k which its share π_k of q cancels.
    """
    family = mixture.component
    if not isinstance(family, GaussianFamily):
        raise TypeError(f"mixture_gradient needs Gaussian components, not {type(family).__name__}")

    def with_entropy(theta: Tensor) -> Tensor:
        return loss.regularizer(theta) + mixture.log_prob(natural, theta)

    augmented = Loss(loss.examples, with_entropy, loss.scale, loss.model)
    each = [natural.map(lambda value, k=k: value[k]) for k in range(len(mixture.weights))]  # type: ignore[misc]
    gradients = _gradients(family, each, augmented, where, curvature, noise)
    return Natural(**{name: torch.stack([gradient[name] for gradient in gradients]) for name in natural.names})


def _gradients(
    family: GaussianFamily,
    naturals: list[Natural],
    loss: Loss,
    where: Where,
    curvature: Curvature,
    noise: NoiseSource | None,
) -> list[Natural]:
    """∇_μ E_q[ℓ] for several members of a family; all points of all members are evaluated at once."""
    source = FromGenerator() if noise is None else noise
    points = [where(family, natural, source) for natural in naturals]
    thetas = torch.cat([point for point, _ in points])
    pulls = torch.cat(
        [
            (point - family.mean(natural)) @ family.precision_matrix(natural)
            for (point, _), natural in zip(points, naturals, strict=True)
        ]
    )
    if curvature.needs_spread and not pulls.any():
        raise Unsupported(
            f"{type(curvature).__name__} at the mean alone, where it is 0",
            remedy="Take it at draws (MonteCarlo) or quadrature points (GaussHermite), or use Hessian().",
        )
    gradients = torch.func.vmap(loss.gradient)(thetas).split([len(weights) for _, weights in points])
    matrices = torch.func.vmap(lambda theta, pull: curvature(loss, theta, pull))(thetas, pulls).split(
        [len(weights) for _, weights in points]
    )
    return [
        family.bonnet_price(natural, weights @ gradient, torch.einsum("p,pij->ij", weights, matrix))
        for natural, (_, weights), gradient, matrix in zip(naturals, points, gradients, matrices, strict=True)
    ]
