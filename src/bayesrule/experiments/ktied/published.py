"""Where an experiment's published numbers lie."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("published")


def published(name: str) -> Path:
    """The file of a table or figure."""
    return FOLDER / f"{name}.json"
