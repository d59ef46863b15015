"""Where a result comes from: commit, versions and a digest of the source."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from hashlib import sha256
from importlib import metadata
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def commit() -> str:
    """Of the checkout the package lies in, with ``-dirty`` if files differ from it, other than results kept there.

    Where the source was copied without its history, ``$BAYESRULE_COMMIT`` says what it is a copy of.
    """
    copied = os.environ.get("BAYESRULE_COMMIT", "unknown")
    found = _git("rev-parse", "HEAD")
    if not found:
        return copied
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", ":(top,exclude)results")
    return f"{found}-dirty" if changed else found


def _git(*words: str) -> str | None:
    """What it says; None where there is no git, or no checkout."""
    try:
        ran = subprocess.run(["git", *words], cwd=PACKAGE, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Of Python, of what every experiment uses, and of further packages that are installed."""
    found = {"python": platform.python_version()}
    for name in ("bayesrule", "torch", "numpy", *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def source_digest(without: Iterable[str] = ()) -> str:
    """Of the package's source, less some of its parts: numbers of another source are not taken over."""
    digest, left_out = sha256(), set(without)
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] in left_out:
            continue
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
