"""Small pictures inside the page: PNG files as data addresses."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from jaxtyping import Float, UInt8

GREY_AND_ALPHA, COLOUR = 4, 2  # as the PNG header numbers them

# Eleven steps of the viridis map, whose lightness rises evenly: readable in print, on dark and by colour-blind eyes.
_VIRIDIS = (
    0x440154, 0x482475, 0x414487, 0x355F8D, 0x2A788E, 0x21918C, 0x22A884, 0x44BF70, 0x7AD151, 0xBDDF26, 0xFDE725,
)  # fmt: skip


def ink(shares: Float[np.ndarray, "height width"]) -> str:
    """Black ink, opaque where the share is 1 and clear where it is 0."""
    alpha = _bytes(shares)
    return _address(np.stack([np.zeros_like(alpha), alpha], -1), GREY_AND_ALPHA)


def heat(shares: Float[np.ndarray, "height width"]) -> str:
    """Colours from dark blue at 0 over green to yellow at 1."""
    return _address(_viridis()[_bytes(shares)], COLOUR)


def colour_bar() -> str:
    """The colours of `heat` from left to right."""
    return heat(np.linspace(0, 1, 64)[None])


def _viridis() -> UInt8[np.ndarray, "256 3"]:
    steps = np.array([[colour >> shift & 255 for shift in (16, 8, 0)] for colour in _VIRIDIS], dtype=np.float64)
    places = np.linspace(0, len(steps) - 1, 256)
    mixed = [np.interp(places, np.arange(len(steps)), steps[:, channel]) for channel in range(3)]
    return np.stack(mixed, -1).round().astype(np.uint8)


def _bytes(shares: np.ndarray) -> UInt8[np.ndarray, "height width"]:
    return (255 * np.nan_to_num(shares, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1)).round().astype(np.uint8)


def _address(pixels: UInt8[np.ndarray, "height width channels"], kind: int) -> str:
    height, width, channels = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * channels)], 1)
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    parts = (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)), _chunk(b"IEND", b""))
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
