"""Multimodal optimisation: a mixture of Gaussians, and the delta method   (Sec. 3.2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam import (
    Curvature,
    Delta,
    FixedWeightsMixture,
    GaussianFull,
    Hessian,
    Loss,
    Natural,
    Schedule,
    Where,
    learning_rule,
    mixture_gradient,
)
from bayesrule.random import NoiseSource


def uniform_mixture(starts: Float[Tensor, "components dim"], precision: float) -> tuple[FixedWeightsMixture, Natural]:
    """Equal weights, means at ``starts`` and isotropic precision."""
    count, dim = starts.shape
    eye = precision * torch.eye(dim).to(starts).expand(count, dim, dim)
    mixture = FixedWeightsMixture(GaussianFull(), starts.new_full((count,), 1 / count))
    return mixture, GaussianFull().from_mean_precision(starts, eye)


def multimodal(
    loss: Loss,
    mixture: FixedWeightsMixture,
    natural: Natural,
    step_size: Schedule | float,
    *,
    where: Where = Delta(),  # noqa: B008  (frozen, without state)
    curvature: Curvature = Hessian(),  # noqa: B008
    noise: NoiseSource | None = None,
) -> Iterator[Natural]:
    """Each component takes Newton-like steps on ℓ + log q, so that the others' territory repels it   (Eqs. 29, 30).

    m_k ← m_k − ρS_k⁻¹E_k[∇(ℓ + log q)], S_k ← S_k + ρE_k[∇²(ℓ + log q)], with the new S_k in the first. Steps are
    shortened where S_k would not stay positive definite.
    """

    def gradients(t: int, naturals: learning_rule.Naturals) -> dict[str, Natural]:
        return {"q": mixture_gradient(mixture, naturals["q"], loss, where, curvature, noise)}

    steps = learning_rule.iterates({"q": mixture}, {"q": natural}, gradients, step_size, line_search=True)
    return (naturals["q"] for naturals in steps)
