"""Larochelle's statically binarized MNIST: each pixel was drawn once, so that density models can be compared."""

from __future__ import annotations

import os

import numpy as np
import torch
from jaxtyping import UInt8

from bayesrule.data.contents import AGAIN, BadData, check_sum, read_arrays, read_content
from bayesrule.data.files import DataFile, locate_one_form
from bayesrule.data.labelled import UnlabelledSet

PARTS = ("train", "valid", "test")
PIXELS = 784
FILE = DataFile("binarized_mnist/binarized_mnist.npz")
TEXT_FILES = [DataFile(f"binarized_mnist/binarized_mnist_{part}.amat") for part in PARTS]
PIXEL_SUM = "07ad6da6ba6894a550cb68ae290ff3deb006a01f6b6ce1b3123edec502f1fce8"
"""SHA-256 of all pixels, a byte each: of ``train``, then ``valid``, then ``test``."""


def binarized_mnist(data: str | os.PathLike[str] | None = None, *, verify: bool = False) -> UnlabelledSet:
    """50,000 training, 10,000 validation and 10,000 test images as (N, 784) bytes of 0 or 1.

    Args:
        data: The folder to look in first, for ``binarized_mnist/binarized_mnist.npz`` or the three published text files
            ``binarized_mnist/binarized_mnist_{train,valid,test}.amat``.
        verify: Whether to compare the checksum of the pixels.
    """
    parts = _parts(data)
    for name, pixels in parts.items():
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS or (pixels > 1).any():
            raise BadData(
                f"The {name} part of the binarized MNIST must be rows of {PIXELS} bytes 0 or 1",
                got=f"{pixels.dtype} of shape {pixels.shape}, largest {pixels.max(initial=0)}",
                remedy=AGAIN,
            )
    if verify:
        check_sum(b"".join(pixels.tobytes() for pixels in parts.values()), PIXEL_SUM, "The binarized MNIST")
    train, valid, test = (torch.from_numpy(pixels.copy()) for pixels in parts.values())
    return UnlabelledSet(train, valid, test, "binarized-mnist")


def _parts(data: str | os.PathLike[str] | None) -> dict[str, UInt8[np.ndarray, " ..."]]:
    paths = locate_one_form([TEXT_FILES, [FILE]], data)
    if len(paths) == 1:
        return read_arrays(paths[0], PARTS)
    return {part: _read_text(read_content(path), str(path)) for part, path in zip(PARTS, paths, strict=True)}


def _read_text(content: bytes, origin: str) -> UInt8[np.ndarray, " ..."]:
    """Rows of the digits 0 and 1, with blanks in between."""
    digits = np.frombuffer(content.translate(None, b" \t\r\n"), np.uint8) - ord("0")
    if digits.size == 0 or digits.size % PIXELS:
        raise BadData(f"{origin} is not rows of {PIXELS} digits", got=f"{digits.size} digits", remedy=AGAIN)
    return digits.reshape(-1, PIXELS)
