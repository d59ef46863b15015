"""From values to places: an axis with its ticks, linear or logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

LARGEST = 1e150  # squares and sums of what is drawn stay finite


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` lie between the places ``start`` and ``end``; those beyond at an end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies."""
        low, high, value = self._scaled(self.low), self._scaled(self.high), self._scaled(value)
        share = min(max((value - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        if not self.log:
            return value
        return math.log10(value) if value > 0 else -math.inf

    def ticks(self, about: int = 5) -> list[float]:
        """Round values between the ends."""
        if self.log:
            return self._log_ticks(about)
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = min((factor * power for factor in (1, 2, 5, 10)), key=lambda size: abs(math.log(size / rough)))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _log_ticks(self, about: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1,) if last - first > 3 else (1, 3) if last - first > 1 else (1, 2, 5)
        stride = max(1, math.ceil((last - first) / about))
        powers = range(first, last + 1, stride)
        values = [factor * 10.0**power for power in powers for factor in factors]
        inside = [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
        return inside if len(inside) > 1 else replace(self, log=False).ticks(about)


def finite(values: Iterable[float]) -> np.ndarray:
    """Those that can be drawn."""
    array = np.asarray(list(values), dtype=np.float64)
    return array[np.abs(array) < LARGEST]  # false for NaN


def limits(values: Iterable[float], margin: float = 0.05) -> tuple[float, float]:
    """Ends of a linear axis that hold every value, never equal."""
    known = finite(values)
    if known.size == 0:
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    spread = high - low
    if spread <= 1e-9 * max(abs(low), abs(high)):
        spread = max(abs(low), 1.0) if low else 2.0
        return low - spread / 2, high + spread / 2
    return low - margin * spread, high + margin * spread


def thinned(length: int, most: int) -> np.ndarray:
    """Evenly spread indices of at most so many, both ends among them."""
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(int))
