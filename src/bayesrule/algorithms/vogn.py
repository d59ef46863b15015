"""Variational online Gauss–Newton: OGN's row without the delta method   (Sec. 4.4)."""

from __future__ import annotations

from collections.abc import Iterator

from bayesrule.algorithms.descent import Losses, descend
from bayesrule.expfam import Curvature, GaussianDiagonal, GaussNewton, MonteCarlo, Natural, Schedule
from bayesrule.random import NoiseSource


def vogn(
    losses: Losses,
    natural: Natural,
    step_size: Schedule | float,
    *,
    samples: int = 1,
    curvature: Curvature = GaussNewton(),  # noqa: B008  (frozen, without state)
    momentum: float = 0.0,
    noise: NoiseSource | None = None,
) -> Iterator[Natural]:
    """OGN with gradients at draws θ + ε, ε ~ N(0, diag(1/s))   (Eq. 46).

    With ``TrueFisher()`` it is VOGGN; with ``Price()``, the update of VON from gradients alone.
    """
    where = MonteCarlo(samples)
    return descend(GaussianDiagonal(), natural, losses, where, curvature, step_size, momentum=momentum, noise=noise)
