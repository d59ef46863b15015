"""Turns for threads, where they cannot share a model: in the midst of a pass, or with a draw in its weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from bayesrule.errors import Unsupported

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
PATIENCE = 300.0
"""Seconds after which a thread no longer waits: for one that may wait for it."""


class Turn:
    """A lock that its own thread may take again.

    A thread of autograd's engine goes in with the one that waits for its gradients, which may be in the midst of what
    the lock guards: it recomputes checkpointed regions.
    """

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()

    def take(self) -> None:
        """Wait for it."""
        if self._lock.acquire(blocking=False) or isinstance(threading.current_thread(), threading._DummyThread):
            return
        if not self._lock.acquire(timeout=PATIENCE):
            raise Unsupported(
                f"Another thread has been using this model for {PATIENCE:g} seconds",
                remedy="Give each thread a model of its own (copy.deepcopy), and start none within a forward pass.",
            )

    def give_back(self) -> None:
        """Once for each time that it was taken."""
        if self._lock._is_owned():
            self._lock.release()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *error: object) -> None:
        self.give_back()


_turns: WeakKeyDictionary[Any, Turn] = WeakKeyDictionary()
_looking_up = threading.Lock()


def turn_of(model: object) -> Turn:
    """The one of a model, for as long as it lives."""
    with _looking_up:
        return _turns.setdefault(model, Turn())


def in_turn(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method for which threads take the turn of its object."""

    @wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        with turn_of(self):
            return method(self, *args, **kwargs)

    return guarded
