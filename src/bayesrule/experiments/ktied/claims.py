"""Claims about single numbers of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from bayesrule.experiments.experiment import Claim, Verdict
from bayesrule.experiments.rows import Row

Key = tuple[str, str, str]
"""Data set, method, metric."""
Judge = Callable[..., tuple[bool, str]]
"""Of the numbers asked for: whether the claim holds, and what to say."""


def claim(name: str, needs: Sequence[Key], judge: Judge) -> Claim:
    """A claim over some numbers; not measured where one of them is missing."""

    def check(rows: Sequence[Row]) -> Verdict:
        found = {(row.dataset, row.method, row.metric): row.value for row in rows}
        missing = [" ".join(key) for key in needs if key not in found]
        if missing:
            return Verdict("not measured", f"needs {'; '.join(missing[:3])}")
        return Verdict.of(*judge(*(found[key] for key in needs)))

    return Claim(name, check)


def at_least(bound: float) -> Judge:
    """Every number reaches the bound."""
    return lambda *values: (min(values) >= bound, _told(values))


def at_most(bound: float) -> Judge:
    """No number exceeds the bound."""
    return lambda *values: (max(values) <= bound, _told(values))


def within(bound: float) -> Judge:
    """The others differ from the first by less than the bound."""
    return lambda first, *others: (max(abs(other - first) for other in others) < bound, _told((first, *others)))


def within_fraction(fraction: float) -> Judge:
    """The others differ from the first by less than this fraction of it."""
    return lambda first, *others: (
        max(abs(other - first) for other in others) < fraction * abs(first),
        _told((first, *others)),
    )


def times_first(factor: float) -> Judge:
    """Every other number is at least so many times the first."""
    return lambda first, *others: (min(others) >= factor * first, _told((first, *others)))


def fraction_of_first(factor: float) -> Judge:
    """No other number exceeds this part of the first."""
    return lambda first, *others: (max(others) <= factor * first, _told((first, *others)))


def increasing(*values: float) -> tuple[bool, str]:
    """Each number is larger than the one before."""
    return all(before < after for before, after in pairwise(values)), _told(values)


def _told(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
