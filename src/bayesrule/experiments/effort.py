"""The seconds of computing behind a result: of each cell and each trained model once, however often it is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Effort:
    """What cells and models took to compute, whenever that was.

    Attributes:
        seconds: By name of the cell or model.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    _models: dict[str, float] = field(default_factory=dict)
    _elsewhere: float = 0.0

    @contextmanager
    def cell(self, name: str) -> Iterator[dict[str, float]]:
        """Times a cell; afterwards the dictionary has its own seconds, and those of the models it asked for."""
        self._models, self._elsewhere = {}, 0.0
        computed = self._models
        started = time.perf_counter()
        yield computed
        computed[name] = time.perf_counter() - started - self._elsewhere
        self.seconds |= computed

    def model(self, name: str, seconds: float, elapsed: float) -> None:
        """A model was asked for: it took so long to train, now or before, and so long to come by."""
        self.seconds[name] = self._models[name] = seconds
        self._elsewhere += elapsed
