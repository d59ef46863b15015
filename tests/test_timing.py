"""Times are taken in turns: warm-ups are not timed, the order changes, and each clock counts what it says."""

from __future__ import annotations

import math
import time
from collections import Counter
from functools import partial
from itertools import count, pairwise

import pytest
import torch

from bayesrule.timing import Turn, interleaved, processor_clock, seconds, wall_clock

CPU = torch.device("cpu")


def test_a_turn_is_timed_by_its_clock_and_divided_by_its_repeats() -> None:
    ticks = count(step=12)
    done: list[int] = []
    assert seconds(Turn(partial(done.append, 1), repeats=4), lambda: float(next(ticks))) == 3.0
    assert len(done) == 4


def test_warm_ups_come_first_and_are_not_timed() -> None:
    done: list[str] = []
    read: list[int] = []

    def clock() -> float:
        read.append(len(done))
        return 0.0

    turns = {name: Turn(partial(done.append, name), repeats) for name, repeats in (("a", 1), ("b", 2), ("c", 1))}
    times = interleaved(turns, clock, rounds=3, warm_ups=2)
    assert "".join(done[:6]) == "aabbcc"
    rounds = ["".join(done[start : start + 4]) for start in range(6, len(done), 4)]
    assert len(rounds) == 3
    assert all(sorted(each) == ["a", "b", "b", "c"] and "bb" in each for each in rounds)
    assert read[0] == 6
    assert {name: taken.tolist() for name, taken in times.items()} == dict.fromkeys("abc", [0.0] * 3)


def test_everyone_follows_everyone_else_about_as_often() -> None:
    done: list[str] = []
    turns = {name: Turn(partial(done.append, name)) for name in "abcd"}
    interleaved(turns, lambda: 0.0, rounds=400)
    pairs = Counter(pair for pair in pairwise(done) if pair[0] != pair[1])
    assert len(pairs) == 12
    assert max(pairs.values()) < 1.5 * min(pairs.values())


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 3), (math.inf, 7)])
def test_rounds_end_with_the_budget_once_there_are_enough(budget: float, rounds: int) -> None:
    turns = {"only": Turn(lambda: None)}
    assert len(interleaved(turns, processor_clock, rounds=7, budget=budget, least=3)["only"]) == rounds


def test_waiting_is_seen_by_the_wall_and_not_by_the_processor() -> None:
    waits = Turn(partial(time.sleep, 0.02))
    assert seconds(waits, wall_clock(CPU)) >= 0.02
    assert seconds(waits, processor_clock) < 0.01


def test_nobody_to_time() -> None:
    assert interleaved({}, wall_clock(CPU), rounds=2) == {}
