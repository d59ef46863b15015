"""Where the published numbers are."""

from __future__ import annotations

from pathlib import Path


def published(name: str) -> Path:
    """The file of a table or figure."""
    return Path(__file__).with_name("published") / f"{name}.json"
