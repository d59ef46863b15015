"""One place that turns every fault into a message and an exit code: 0 done, 1 failed or interrupted, 2 bad input."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer
from rich.console import Console
from rich.markup import escape

from bayesrule.errors import BayesruleError

FAILED, BAD_INPUT = 1, 2
_REMEDIES = {
    errno.ENOSPC: "Free some space and run the same command again; what was there before is untouched.",
    errno.EDQUOT: "Free some space and run the same command again; what was there before is untouched.",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), or write to another disk.",
    errno.EACCES: "Choose a folder that you may write to.",
    errno.EPERM: "Choose a folder that you may write to.",
    errno.EROFS: "Choose a folder that you may write to.",
    errno.ENOTDIR: "Choose a folder that is not below a file.",
}


@contextmanager
def faults_reported(debug: bool) -> Iterator[None]:
    """Faults inside end the program with a message, and with a traceback only if asked for."""
    with _terminated_as_interrupted():
        try:
            yield
        except (typer.Exit, typer.Abort):
            raise
        except BaseException as error:
            if debug or not isinstance(error, Exception | KeyboardInterrupt):
                raise
            message, code = _explained(error)
            Console(stderr=True, soft_wrap=True, highlight=False).print(message)
            raise typer.Exit(code) from None


def _explained(error: BaseException) -> tuple[str, int]:
    if isinstance(error, BayesruleError):
        running = isinstance(error, ArithmeticError | KeyboardInterrupt)  # diverged, interrupted
        remedy = error.remedy or "See what is possible with --help."
        return _parts(error.what, error.got, remedy), FAILED if running else BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        return _parts("Interrupted", None, "Nothing was written that is not whole."), FAILED
    if isinstance(error, OSError):
        what = f"{error.filename or 'A file'} could not be read or written"
        remedy = _REMEDIES.get(error.errno or 0, "Check the file's name, its folder and the disk.")
        return _parts(what, error.strerror or error, remedy), FAILED
    if isinstance(error, MemoryError):
        return _parts("There is not enough memory", None, "Use fewer rows or smaller layers."), FAILED
    what = "Something went wrong that should not have"
    return _parts(what, f"{type(error).__name__}: {error}", "Run it again with --debug for the traceback."), FAILED


def _parts(what: str, got: object, remedy: str) -> str:
    lines = [f"[bold red]Error:[/] {escape(what.rstrip('.'))}."]
    if got is not None:
        lines.append(f"[dim]Got:[/] {escape(str(got))}")
    lines.append(f"[dim]What to do:[/] {escape(remedy)}")
    return "\n".join(lines)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that half-written files are removed; training catches both itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
