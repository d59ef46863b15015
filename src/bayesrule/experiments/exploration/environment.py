"""A simulation as an environment of gymnasium."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bayesrule.experiments.exploration.simulations import Simulation


def environment(make: Callable[[], Simulation], horizon: int, seed: int) -> Any:
    """The sparse task: reward 1 where the goal is met, else 0; cut off after ``horizon`` steps.

    The class is made here because its base belongs to the extra ``rl``.
    """
    import gymnasium

    class SparseTask(gymnasium.Env[np.ndarray, np.ndarray]):
        def __init__(self) -> None:
            self.simulation, self.generator, self.steps = make(), np.random.default_rng(seed), 0
            limits = np.inf, (self.simulation.observations,)
            self.observation_space = gymnasium.spaces.Box(-limits[0], limits[0], limits[1], np.float32)
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.simulation.actions,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            if seed is not None:
                self.generator = np.random.default_rng(seed)
            self.steps = 0
            return self.simulation.reset(self.generator), {}

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            observation, met, over = self.simulation.step(action)
            self.steps += 1
            return observation, float(met), over, self.steps >= horizon and not over, {}

    return SparseTask()
