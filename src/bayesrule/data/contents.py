"""What data files hold: unzipped, checked, and refused with a reason when damaged."""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from bayesrule.errors import InvalidArgument

AGAIN = "Remove the file and get it again; the page on data sets lists every file and its checksum."


class BadData(InvalidArgument):
    """A data file is damaged, or not what its name says."""


def read_content(path: Path, sha256: str = "") -> bytes:
    """The bytes of a file, unzipped if it is gzipped.

    Args:
        path: Of the file.
        sha256: What the unzipped bytes must have; not checked if empty.
    """
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise BadData(f"{path} cannot be unzipped: it is cut short or damaged", got=error, remedy=AGAIN) from error
    check_sum(content, sha256, str(path))
    return content


def check_sum(content: bytes, sha256: str, origin: str) -> None:
    """Raise unless the bytes have this SHA-256; an empty one is not checked."""
    if sha256 and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise BadData(f"{origin} does not have the checksum of the set", got=f"SHA-256 {found}", remedy=AGAIN)


def read_arrays(path: Path, names: Sequence[str], sha256: str = "") -> dict[str, Shaped[np.ndarray, " ..."]]:
    """Named arrays of an ``.npz`` file, without pickle."""
    content = read_content(path, sha256)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            return {name: stored[name] for name in names}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadData(
            f"{path} is not an archive of the arrays {', '.join(names)}",
            got=error or type(error).__name__,
            remedy=AGAIN,
        ) from error
