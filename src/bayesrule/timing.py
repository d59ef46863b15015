"""Times that are taken in turns, by the clock on the wall or by the processor's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

MIN_ROUNDS = 5
Times = NDArray[np.float64]
Clock = Callable[[], float]
"""Tells a time in seconds, whose origin does not matter."""

processor_clock: Clock = time.thread_time
"""What the thread has taken of a processor. Waiting for other programs does not count, nor do other threads' work and a
GPU's: for one thread on a busy machine."""


def wall_clock(device: torch.device) -> Clock:
    """The clock on the wall, read when everything asked of a CUDA device is done."""

    def read() -> float:
        synchronize(device)
        return time.perf_counter()

    return read


def synchronize(device: torch.device) -> None:
    """Wait until everything asked of a CUDA device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Turn:
    """What one contender does in a round.

    Attributes:
        work: The thing to be timed.
        repeats: How often it is done in a turn, whose time is divided by that. Work that differs from one time to the
            next, such as steps of which every tenth gathers curvature, is repeated until the pattern is complete; work
            that is short, until the clock's own cost is hidden.
    """

    work: Callable[[], object]
    repeats: int = 1


def seconds(turn: Turn, clock: Clock) -> float:
    """Of one piece of work."""
    started = clock()
    for _ in range(turn.repeats):
        turn.work()
    return (clock() - started) / turn.repeats


def interleaved(
    turns: Mapping[str, Turn], clock: Clock, *, rounds: int, budget: float = math.inf, least: int = MIN_ROUNDS,
    warm_ups: int = 0,
) -> dict[str, Times]:  # fmt: skip
    """Seconds of every contender in every round; a round is one turn of each.

    Whatever else the machine does then reaches all of them alike. The order is drawn anew for every round, always the
    same for as many contenders, so that nobody always follows the same neighbour and finds the caches as that one left
    them, with its code or another's.

    Args:
        turns: The contenders.
        clock: What their time is taken by.
        rounds: At most so many.
        budget: No round begins after so many seconds on the wall, once there are enough.
        least: Rounds that are enough.
        warm_ups: How often everyone's work is done before, without being timed.
    """
    for turn in turns.values():
        for _ in range(warm_ups):
            turn.work()
    taken: dict[str, list[float]] = {name: [] for name in turns}
    names, orders, until = list(turns), np.random.default_rng(0), time.perf_counter() + budget
    for done in range(max(rounds, 1)):
        if done >= least and time.perf_counter() >= until:
            break
        for index in orders.permutation(len(names)):
            taken[names[index]].append(seconds(turns[names[index]], clock))
    return {name: np.array(times) for name, times in taken.items()}
