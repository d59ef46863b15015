"""Laplace's method: the fixed point of Newton's row; a Gaussian and the delta method   (Sec. 4.4)."""

from __future__ import annotations

from itertools import islice

from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.newton import newton
from bayesrule.errors import InvalidArgument
from bayesrule.expfam import GaussianFull, Loss, Natural


def laplace(loss: Loss, start: Float[Tensor, " dim"], *, tolerance: float = 1e-12, max_steps: int = 100) -> Natural:
    """N(θ*, ∇²ℓ(θ*)⁻¹) at a minimiser θ* of ℓ   (App. C.1)."""
    family, mean = GaussianFull(), start
    for natural in islice(newton(loss, start), max_steps):
        if not family.valid(natural):
            break
        before, mean = mean, family.mean(natural)
        if (mean - before).abs().max() <= tolerance * (1 + mean.abs().max()):
            return natural
    raise InvalidArgument(
        f"Newton's method found no minimum in {max_steps} steps",
        got=f"the last point {mean}",
        remedy="Start nearer to one, or give max_steps more.",
    )
