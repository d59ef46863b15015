"""Symbolic traces of networks, of which other threads see nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import fx, nn

_one_at_a_time = threading.RLock()
"""torch.fx puts its own code into every module's calls, and at the end back what it found there."""


class Tracer(fx.Tracer):
    """Follows the calls of the thread that traces; modules that another one calls meanwhile do what they always do."""

    _thread: int | None = None

    def trace(self, *args: Any, **kwargs: Any) -> fx.Graph:
        """The graph of a network's forward pass, when no other is being traced."""
        with _one_at_a_time:
            self._thread = threading.get_ident()
            return super().trace(*args, **kwargs)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Of a call in this thread, what `follow` makes of it."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return self.follow(m, forward, args, kwargs)

    def follow(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call as torch.fx takes it."""
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """An attribute of a module: in other threads, itself."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)
