"""Memory that the C library keeps for itself, so that no step waits for the system to hand it out again."""

from __future__ import annotations

import ctypes

from bayesrule.errors import Unsupported

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of `mallopt`: how much free memory goes back to the system, and how many blocks are mapped apart."""


def keep_memory() -> None:
    """For the rest of the process: freed memory is kept, however large its pieces.

    By default glibc asks the system for every piece above 32 MiB and gives it back. The system clears it page by page,
    which takes a large step a tenth or a third of its time, and never the same.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, or system
        mallopt = None
    if mallopt is None or not (mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, 2**31 - 1)):
        raise Unsupported("The C library here cannot be told to keep memory", remedy="Leave out --keep-memory.")
