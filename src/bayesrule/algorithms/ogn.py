"""Online Gauss–Newton: a diagonal Gaussian, the delta method, minibatches, squared gradients of examples (4.4)."""

from __future__ import annotations

from collections.abc import Iterator

from bayesrule.algorithms.descent import Losses, descend
from bayesrule.expfam import Curvature, Delta, GaussianDiagonal, GaussNewton, Natural, Schedule


def ogn(
    losses: Losses,
    natural: Natural,
    step_size: Schedule | float,
    *,
    momentum: float = 0.0,
    curvature: Curvature = GaussNewton(),  # noqa: B008  (frozen, without state)
) -> Iterator[Natural]:
    """θ ← θ − ρ∇̂ℓ/s, s ← (1−ρ)s + ρ[N/M Σ(∇ℓ_i)² + ∇²R]   (Eqs. 44 and 45).

    With ``TrueFisher()`` it is OGGN; with ``AbsoluteHessian()``, Eq. 36.
    """
    return descend(GaussianDiagonal(), natural, losses, Delta(), curvature, step_size, momentum=momentum)
