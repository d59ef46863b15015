"""A value that an immutable object computes when it is first asked for, and keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ComputedOnce:
    """`functools.cached_property` without the lock it has before Python 3.12, which `torch.compile` cannot enter."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        """Computes, and leaves the value where Python finds it before it asks here again."""
        if instance is None:
            return self
        value = self.compute(instance)
        object.__setattr__(instance, self.name, value)  # the object is frozen for everybody else
        return value
