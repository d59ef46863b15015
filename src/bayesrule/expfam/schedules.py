"""Step sizes ρ_t as functions of t = 0, 1, 2 and so on."""

from __future__ import annotations

from collections.abc import Callable

from bayesrule.errors import InvalidArgument

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """ρ_t = value."""
    return lambda t: value


def robbins_monro(offset: float = 1.0, decay: float = 0.7) -> Schedule:
    """ρ_t = (offset + t)^(−decay), whose sum is infinite and whose squares' is not, for ½ < decay ≤ 1."""
    if not 0.5 < decay <= 1:
        raise InvalidArgument("the decay of the step size must lie above ½ and not above 1", got=decay)
    return lambda t: (offset + t) ** -decay
