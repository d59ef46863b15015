"""Times that are taken in turns, and what they say: ratios of medians, with intervals."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray

RESAMPLES, LEVEL = 2000, 0.95
MIN_ROUNDS = 5
Times = NDArray[np.float64]


@dataclass(frozen=True)
class Turn:
    """What one contender does in a round.

    Attributes:
        work: The thing to be timed.
        repeats: How often it is done in a turn, whose time is divided by that. Work that differs from one time to the
            next, such as steps of which every tenth gathers curvature, is repeated until the pattern is complete.
    """

    work: Callable[[], object]
    repeats: int = 1


@dataclass(frozen=True)
class Ratio:
    """Of two medians, and an interval that holds it at 95 %."""

    value: float
    low: float
    high: float


def seconds(turn: Turn, device: torch.device) -> float:
    """Of one piece of work, on the clock of the wall; a CUDA device is waited for before and after."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(turn.repeats):
        turn.work()
    synchronize(device)
    return (time.perf_counter() - started) / turn.repeats


def synchronize(device: torch.device) -> None:
    """Wait until everything asked of a CUDA device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def interleaved(
    turns: Mapping[str, Turn], device: torch.device, *, rounds: int, budget: float, least: int = MIN_ROUNDS
) -> dict[str, Times]:
    """Seconds of every contender in every round; a round is one turn of each.

    Whatever else the machine does then reaches all of them alike. The order changes from round to round, so that nobody
    always follows the same neighbour and finds the caches as that one left them.

    Args:
        turns: The contenders.
        device: Where they compute.
        rounds: At most so many.
        budget: No round begins after so many seconds, once there are enough.
        least: Rounds that are enough.
    """
    taken: dict[str, list[float]] = {name: [] for name in turns}
    names, until = list(turns), time.perf_counter() + budget
    for done in range(max(rounds, 1)):
        if done >= least and time.perf_counter() >= until:
            break
        start = done % max(len(names), 1)
        for name in names[start:] + names[:start]:
            taken[name].append(seconds(turns[name], device))
    return {name: np.array(times) for name, times in taken.items()}


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
