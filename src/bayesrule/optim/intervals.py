"""Which steps gather curvature, and which compute inverses."""

from __future__ import annotations

from bayesrule.errors import InvalidArgument


def check_count(name: str, value: int) -> None:
    """Refuse what does not count anything."""
    if not isinstance(value, int) or value < 1:
        raise InvalidArgument(f"{name} is a whole number, at least 1", got=value)


def due(step: int, interval: int) -> bool:
    """Whether step number ``step``, from 1, is one of an interval: the first, second, fourth, …, then every so many."""
    return step % interval == 0 if step >= interval else step & (step - 1) == 0
