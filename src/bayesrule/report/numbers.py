"""Numbers as a person reads them. Nothing here fails on NaN or infinity."""

from __future__ import annotations

import math

MISSING = "–"
_SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def percent(share: float, digits: int = 1) -> str:
    r"""``0.972`` → ``97.2 %``. Nothing short of all reads as 100 %, nothing above none as 0 %.

    >>> percent(0.972), percent(1.0), percent(0.9999), percent(0.0001)
    ('97.2\xa0%', '100\xa0%', '>99.9\xa0%', '<0.1\xa0%')
    """
    if not math.isfinite(share):
        return MISSING
    if share in (0, 1):
        return f"{100 * share:.0f}\u00a0%"
    smallest = 10.0**-digits
    value = round(100 * share, digits)
    if value >= 100 and share < 1:
        return f">{100 - smallest:.{digits}f}\u00a0%"
    if value <= 0 and share > 0:
        return f"<{smallest:.{digits}f}\u00a0%"
    return f"{value:.{digits}f}\u00a0%"


def tick_percent(share: float) -> str:
    """As few digits as tell it: ``0.5`` → ``50 %``, ``0.975`` → ``97.5 %``, ``1e-4`` → ``0.01 %``."""
    return f"{100 * share:.4g}\u00a0%"


def tick_number(value: float) -> str:
    """As few digits as tell it: ``50`` rather than ``50.0``.

    >>> tick_number(0.3), tick_number(1500.0), tick_number(-2e9)
    ('0.3', '1,500', '−2×10⁹')
    """
    words = number(value, 6)
    return words.rstrip("0").rstrip(".") if "." in words and "×" not in words else words


def number(value: float | None, significant: int = 3) -> str:
    """Three significant digits, thousands apart, powers of ten where it is very large or small.

    >>> number(0.08234), number(-1234.5), number(7.2e12), number(float("nan")), number(float("-inf"))
    ('0.0823', '−1,234', '7.2×10¹²', '–', '−∞')
    """
    if value is None or math.isnan(value):
        return MISSING
    sign = "−" if value < 0 else ""
    size = abs(value)
    if math.isinf(size):
        return f"{sign}∞"
    if size == 0:
        return "0"
    if not 1e-4 <= size < 1e7:
        mantissa, exponent = f"{size:.{significant - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{sign}{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}"
    digits = max(0, significant - 1 - math.floor(math.log10(size)))
    return f"{sign}{size:,.{digits}f}"


def count(value: int | None) -> str:
    """``1437`` → ``1,437``."""
    return MISSING if value is None else f"{value:,}"


def short_count(value: int) -> str:
    """At most four characters: ``1437`` → ``1.4k``."""
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if value >= unit:
            size = value / unit
            return f"{size:.1f}{name}" if size < 9.95 else f"{size:.0f}{name}"
    return str(value)


def duration(seconds: float | None) -> str:
    r"""Seconds, minutes or hours.

    >>> duration(8.24), duration(125.0), duration(7300.0)
    ('8.2\xa0s', '2\xa0min 5\xa0s', '2\xa0h 1\xa0min')
    """
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f}\u00a0s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}\u00a0min {whole % 60}\u00a0s"
    return f"{whole // 3600}\u00a0h {whole % 3600 // 60}\u00a0min"


def shortened(text: str, longest: int = 40) -> str:
    """Text that fits a label."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def plural(how_many: int, noun: str) -> str:
    """``1 example``, ``1,437 examples``."""
    return f"{count(how_many)} {noun}{'' if how_many == 1 else 's'}"
