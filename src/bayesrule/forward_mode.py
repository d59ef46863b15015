"""Where tangents are carried along with values."""

from __future__ import annotations

from torch.autograd import forward_ad


def in_forward_mode() -> bool:
    """Whether forward-mode derivatives are being taken, eagerly, by `torch.func` or in what a compiler traces.

    Plain operations then replace nodes and operators of our own. A ``jvp`` for these would cost all compiled code:
    compilers refuse to trace a node that has one.
    """
    return forward_ad._current_level >= 0
