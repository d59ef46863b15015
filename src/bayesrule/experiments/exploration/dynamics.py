"""Bayesian models of an environment's dynamics, trained on a replay of transitions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.experiments.exploration.information_gain import information_gain
from bayesrule.posteriors import Posterior

HIDDEN, DRAWS, BATCH, CAPACITY = 32, 10, 10, 100_000
PRIOR_STD = 0.5
"""Of every weight, as in VIME."""
LEAST_NOISE = 0.01
"""Standard deviation of the noise, in units of the targets': simulations have none, and a model no such precision."""
NOISE_ROWS = 2000
"""Transitions whose residuals the noise is found from."""


@dataclass
class Replay:
    """The newest transitions: states with actions, and the changes of the state that followed."""

    capacity: int = CAPACITY
    x: Tensor = field(default_factory=lambda: torch.zeros(0))
    y: Tensor = field(default_factory=lambda: torch.zeros(0))

    def __len__(self) -> int:
        return len(self.x)

    def add(self, x: Float[Tensor, "new inputs"], y: Float[Tensor, "new outputs"]) -> None:
        """Further transitions; the oldest are dropped."""
        self.x = torch.cat([self.x.reshape(-1, x.shape[1]), x])[-self.capacity :]
        self.y = torch.cat([self.y.reshape(-1, y.shape[1]), y])[-self.capacity :]

    def standardised(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Transitions in units of the replay's own standard deviations, about its means."""
        return _scaled(x, self.x), _scaled(y, self.y)

    def batches(self, count: int, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Random batches, standardised."""
        x, y = self.standardised(self.x, self.y)
        for _ in range(count):
            rows = torch.randint(len(x), (size,), generator=generator)
            yield x[rows], y[rows]


def _scaled(values: Tensor, by: Tensor) -> Tensor:
    return (values - by.mean(0)) / by.std(0, correction=0).clamp_min(1e-6)


class DynamicsModel(ABC):
    """``p(s' − s | s, a, w)`` with a posterior of the weights; a subclass trains it and gives the posterior.

    Args:
        inputs: Numbers in a state and an action.
        outputs: Numbers in a state.
        iterations: Steps of training an epoch.
        seed: Of the initial weights, the batches and the noise.
    """

    def __init__(self, inputs: int, outputs: int, *, iterations: int = 500, seed: int = 0) -> None:
        self.iterations, self.generator = iterations, torch.Generator().manual_seed(seed)
        self.replay, self.noise_std = Replay(), torch.ones(outputs)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.net = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs))
            self._build()

    @abstractmethod
    def _build(self) -> None:
        """Make what holds the posterior, around `net`."""

    @abstractmethod
    def _train(self, batches: Iterator[tuple[Tensor, Tensor]], n_data: int) -> None:
        """Train on batches of so many transitions in all."""

    @abstractmethod
    def posteriors(self) -> Mapping[str, Posterior]:
        """Of the weights, by group."""

    @abstractmethod
    def means(self) -> Mapping[str, Tensor]:
        """The weights at the posterior mean."""

    def observe(self, x: Tensor, y: Tensor) -> Tensor:
        """Keep transitions; what each of them, by itself, would teach the model as it is."""
        self.replay.add(x, y)
        inputs, targets = self.replay.standardised(x, y)
        return information_gain(self.net, self.means(), self.posteriors(), inputs, targets, self.noise_std)

    def fit(self) -> None:
        """An epoch: batches of ten transitions, each seen at ten draws of the weights."""
        self._find_noise()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(torch.randint(2**62, (), generator=self.generator)))
            self._train(self.replay.batches(self.iterations, BATCH, self.generator), len(self.replay))

    @torch.no_grad()
    def _find_noise(self) -> None:
        """The root mean square residual of each output: what the model does not explain counts as noise.

        Found before training, so that the posterior and its gains speak of the same noise.
        """
        ((x, y),) = self.replay.batches(1, NOISE_ROWS, self.generator)
        residuals = y - torch.func.functional_call(self.net, dict(self.means()), (x,))
        self.noise_std = residuals.square().mean(0).sqrt().clamp_min(LEAST_NOISE)
