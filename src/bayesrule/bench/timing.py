"""What times that were taken in turns say: ratios of medians, with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from bayesrule.timing import Times

RESAMPLES, LEVEL = 2000, 0.95


@dataclass(frozen=True)
class Ratio:
    """Of two medians, and an interval that holds it at 95 %."""

    value: float
    low: float
    high: float


def ratio_of_medians(times: Times, reference: Times, generator: np.random.Generator) -> Ratio:
    """``median(times) / median(reference)``, with the percentile bootstrap over rounds.

    A round is resampled whole, with both of its times: a slow moment of the machine belongs to both.
    """
    rounds = generator.integers(len(times), size=(RESAMPLES, len(times)))
    ratios = np.median(times[rounds], axis=1) / np.median(reference[rounds], axis=1)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Ratio(float(np.median(times) / np.median(reference)), float(low), float(high))


def bootstrap_interval(values: Times, generator: np.random.Generator) -> tuple[float, float]:
    """Of the median, by the percentile bootstrap."""
    medians = np.median(generator.choice(values, (RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def median_interval(values: Sequence[float], confidence: float = LEVEL) -> tuple[float, float, float]:
    """The median, and the order statistics that hold it with at least this confidence, whatever the distribution."""
    ordered, n = sorted(values), len(values)
    outside, rank = 0.0, 0
    while rank < n // 2 and outside + 2 * comb(n, rank) / 2**n <= 1 - confidence:
        outside += 2 * comb(n, rank) / 2**n
        rank += 1
    low = max(rank - 1, 0)
    return statistics.median(ordered), ordered[low], ordered[n - 1 - low]
