"""`triton.jit` for functions that an import hook may have wrapped; imported only where Triton is installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., Any]) -> Any:
    """Compile the function itself: run-time checks of types, which tests put around every function, have no source."""
    return triton.jit(inspect.unwrap(function))
