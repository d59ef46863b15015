"""Reading back what was saved as JSON: each field is checked, so that a damaged file is an error that says so."""

from __future__ import annotations

import math
from collections.abc import Mapping

from bayesrule.errors import InvalidArgument


class BadConfig(InvalidArgument):
    """A saved description is damaged, or was written by something else."""


def entry(config: object, key: str) -> object:
    """The value of a key."""
    if not isinstance(config, Mapping):
        raise BadConfig("A saved description must be a mapping", got=type(config).__name__)
    if key not in config:
        raise BadConfig(f"The saved description lacks {key!r}", got=", ".join(map(str, config)) or "nothing")
    return config[key]


def text(config: object, key: str) -> str:
    """A string."""
    value = entry(config, key)
    if not isinstance(value, str):
        raise _wrong(key, "text", value)
    return value


def number(config: object, key: str, *, positive: bool = False) -> float:
    """A finite number."""
    value = entry(config, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "a number", value)
    try:
        value = float(value)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value) or (positive and value <= 0):
        raise _wrong(key, "a positive number" if positive else "a finite number", value)
    return value


def flag(config: object, key: str) -> bool:
    """True or false."""
    value = entry(config, key)
    if not isinstance(value, bool):
        raise _wrong(key, "true or false", value)
    return value


def items(config: object, key: str) -> list[object]:
    """A list."""
    value = entry(config, key)
    if not isinstance(value, list | tuple):
        raise _wrong(key, "a list", value)
    return list(value)


def distinct_texts(config: object, key: str) -> tuple[str, ...]:
    """A list of strings, each of them once."""
    values = items(config, key)
    texts = tuple(value for value in values if isinstance(value, str))
    if len(texts) != len(values) or len(set(texts)) != len(texts):
        raise _wrong(key, "a list of different strings", values)
    return texts


def _wrong(key: str, expected: str, value: object) -> BadConfig:
    return BadConfig(f"{key!r} of the saved description must be {expected}", got=repr(value)[:80])
