"""Ctrl-C and SIGTERM as a flag, so that training stops between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType


class Interrupt:
    """While it is open, the first signal only sets ``requested``; a second one acts as usual.

    Signals can be caught in the main thread alone; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.requested = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
