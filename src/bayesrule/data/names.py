"""Suggestions for a name that was probably mistyped."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence, and a blank, that suggests the known name most like this one; empty if none is."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f"Did you mean {by_lower[near[0]]!r}? " if near else ""
