"""Three control tasks whose reward is zero until something hard is done   [noisy natural gradient, Sec. 5.3].

A simulation knows physics and success; `environment` makes it an environment of gymnasium. The packages of the extra
``rl`` are imported when a simulation is made.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Array = np.ndarray
UPRIGHT_COSINE, NEAR = 0.8, 0.1
REPEAT = 2
"""Steps of the physics for each action: half of the 1,000 decisions that dm_control gives ten seconds."""
SPREAD = 0.1
"""Standard deviation of the double pendulum's angles at the start, about hanging."""


class Simulation(Protocol):
    """A system with continuous observations and actions in [−1, 1]."""

    observations: int
    actions: int

    def reset(self, generator: np.random.Generator) -> Array:
        """Start anew; the first observation."""

    def step(self, action: Array) -> tuple[Array, bool, bool]:
        """The next observation, whether the goal is met, and whether the episode is over."""


class CartPoleSwingUp:
    """A pole hangs from a cart; +1 for each step in which it is up, ``cos β > 0.8``."""

    observations, actions = 5, 1

    def __init__(self) -> None:
        self._physics, self._task = _dm_control("cartpole", "swingup")

    def reset(self, generator: np.random.Generator) -> Array:
        """Hanging, nearly at rest: as dm_control's task starts."""
        physics = self._physics
        with physics.reset_context():
            physics.named.data.qpos["slider"] = 0.01 * generator.standard_normal()
            physics.named.data.qpos["hinge_1"] = math.pi + 0.01 * generator.standard_normal()
            physics.data.qvel[:] = 0.01 * generator.standard_normal(2)
        return _observed(physics, self._task)

    def step(self, action: Array) -> tuple[Array, bool, bool]:
        """The task never ends by itself."""
        _advance(self._physics, action)
        up = bool(self._physics.pole_angle_cosine()[0] > UPRIGHT_COSINE)
        return _observed(self._physics, self._task), up, False


class DoublePendulum:
    """Two links hang, driven at the joint between them; +1 when the tip is within 0.1 of the point above."""

    observations, actions = 6, 1

    def __init__(self) -> None:
        self._physics, self._task = _dm_control("acrobot", "swingup")

    def reset(self, generator: np.random.Generator) -> Array:
        """Hanging; dm_control's own start, any angle, would meet the goal by luck."""
        with self._physics.reset_context():
            self._physics.data.qpos[:] = np.array([math.pi, 0.0]) + SPREAD * generator.standard_normal(2)
        return _observed(self._physics, self._task)

    def step(self, action: Array) -> tuple[Array, bool, bool]:
        """The task never ends by itself."""
        _advance(self._physics, action)
        return _observed(self._physics, self._task), bool(self._physics.to_target() < NEAR), False


class MountainCar:
    """A car in a valley, too weak to drive out at once; +1 when it escapes, which ends the episode."""

    observations, actions = 2, 1

    def __init__(self) -> None:
        import gymnasium

        self._environment: Any = gymnasium.make("MountainCarContinuous-v0").unwrapped

    def reset(self, generator: np.random.Generator) -> Array:
        """At rest near the bottom."""
        observation, _ = self._environment.reset(seed=int(generator.integers(2**31)))
        return np.asarray(observation, dtype=np.float32)

    def step(self, action: Array) -> tuple[Array, bool, bool]:
        """Gymnasium's own cost of the action is left out."""
        observation, _, escaped, _, _ = self._environment.step(action)
        return np.asarray(observation, dtype=np.float32), bool(escaped), bool(escaped)


SIMULATIONS: dict[str, Callable[[], Simulation]] = {
    "cartpole-swingup": CartPoleSwingUp,
    "mountain-car": MountainCar,
    "double-pendulum": DoublePendulum,
}


def _dm_control(domain: str, task: str) -> tuple[Any, Any]:
    os.environ.setdefault("MUJOCO_GL", "disabled")  # nothing is drawn, and a machine may have no display
    from dm_control import suite

    loaded = suite.load(domain, task)
    return loaded.physics, loaded.task


def _advance(physics: Any, action: Array) -> None:
    physics.set_control(action)
    physics.step(REPEAT)


def _observed(physics: Any, task: Any) -> Array:
    return np.concatenate([np.ravel(part) for part in task.get_observation(physics).values()]).astype(np.float32)
