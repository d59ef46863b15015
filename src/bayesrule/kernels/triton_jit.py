"""`triton.jit` for functions that an import hook may have wrapped; imported only where Triton is installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton


def kernel(function: Callable[..., Any], general: tuple[str, ...] = ()) -> Any:
    """Compile the function itself: run-time checks of types, which tests put around every function, have no source.

    Args:
        function: The kernel.
        general: Arguments for whose values (one, or multiples of 16) no kernel of their own is compiled.
    """
    return triton.jit(inspect.unwrap(function), do_not_specialize=list(general))
