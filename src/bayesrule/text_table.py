"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(header: Sequence[str], *lines: Sequence[str]) -> str:
    """Columns as wide as their widest cell, and a rule below the header."""
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    ruled = [header, ["─" * width for width in widths], *lines]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in ruled
    )
