"""Counts that a user gives."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from bayesrule.errors import InvalidArgument


def whole(name: str, value: Any, least: int) -> int:
    """It, where it is a whole number and not too small."""
    if not isinstance(value, Integral) or value < least:
        raise InvalidArgument(f"{name} is a whole number from {least} on", got=repr(value))
    return int(value)
