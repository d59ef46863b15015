"""One draw per posterior and forward pass, whoever reads it and however often."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from bayesrule.nn.home import Home
from bayesrule.random import FromGenerator, NoiseSource, keyed_generator

HISTORY = 4096
"""Layer calls whose seed is remembered for recomputation."""


class DrawTable:
    """The draws of one root call: the outermost forward of a converted model, or of one of its layers alone.

    A posterior used once draws from its noise source, by default torch's global generator: so `torch.manual_seed`
    fixes it and activation checkpointing, which restores that generator, recomputes the same noise. A posterior used
    several times in a pass (``shared``) is drawn once from a seed of the root call. Recomputation happens after that
    call has ended, so the seed is remembered by the state in which the global generator was at the layer's call,
    which checkpointing brings back.
    """

    def __init__(self) -> None:
        self.noise: NoiseSource = FromGenerator()
        self.shared: set[str] = set()
        self.uses: Counter[str] = Counter()
        self._depth = 0
        self._seed: int | None = None
        self._drawn: dict[str, dict[str, Tensor]] = {}
        self._given: Mapping[str, Tensor] | None = None
        self._at_mean = False
        self._history: OrderedDict[int, int] = OrderedDict()

    @contextmanager
    def root(self, *, seeded: bool = False) -> Iterator[None]:
        """Keep draws until the outermost call ends; ``seeded`` calls choose the seed of shared draws at once."""
        if self._depth == 0:
            self._seed = None
            self.uses.clear()
            if seeded and self.shared and not torch.compiler.is_compiling():
                self._seed = _fresh_seed()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._drawn = {}

    @contextmanager
    def given(self, draws: Mapping[str, Tensor]) -> Iterator[None]:
        """Use these tensors, by parameter name, instead of drawing."""
        before, self._given = self._given, draws
        try:
            yield
        finally:
            self._given = before

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """Use posterior means instead of drawing."""
        before, self._at_mean = self._at_mean, True
        try:
            yield
        finally:
            self._at_mean = before

    @property
    def random(self) -> bool:
        """Whether layers may use their estimators: not while tensors are given or the mean is asked for."""
        return self._given is None and not self._at_mean

    def tensor(self, home: Home, name: str) -> Tensor:
        """The parameter ``name`` of this root call, in its own layout."""
        if self._given is not None and name in self._given:
            return self._given[name]
        posterior = home()
        if self._at_mean:
            return posterior.split(posterior.mean)[name]
        if not self._depth:  # read outside any forward pass: a draw of its own
            with self.root():
                return self.tensor(home, name)
        if home.name in self._drawn:
            return self._drawn[home.name][name]
        source = self._shared_source(home, posterior.mean.device) if home.name in self.shared else self.noise
        noise = source(tuple(posterior.noise_shape), posterior.noise_law, posterior.mean)
        self._drawn[home.name] = posterior.split(posterior.from_noise(noise))
        return self._drawn[home.name][name]

    def _shared_source(self, home: Home, device: torch.device) -> NoiseSource:
        if torch.compiler.is_compiling():  # compiled recomputation restores generators by itself
            return self.noise
        return FromGenerator(keyed_generator(device, self._root_seed(), home.name))

    def _root_seed(self) -> int:
        state = hash(torch.get_rng_state().numpy().tobytes())
        if self._seed is None:
            self._seed = self._history[state] if state in self._history else _fresh_seed()
        self._history[state] = self._seed
        self._history.move_to_end(state)
        while len(self._history) > HISTORY:
            self._history.popitem(last=False)
        return self._seed


def _fresh_seed() -> int:
    return int(torch.randint(2**62, ()).item())
