"""TRPO, of sb3-contrib, with a reward for what a model of the dynamics learns   [VIME]."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesrule.experiments.exploration.dynamics import DynamicsModel
from bayesrule.experiments.exploration.environment import environment
from bayesrule.experiments.exploration.simulations import Simulation

POLICY_WIDTH, DISCOUNT, TRUST_REGION = 32, 0.995, 0.01
REMEMBERED = 10
"""Batches whose median gains the reward is measured by."""
LARGEST = 10.0
"""Gain, in units of that median, above which the reward does not grow: a single jump would be all of an advantage."""


@dataclass(frozen=True)
class Sizes:
    """Of a run.

    Attributes:
        iterations: Updates of the policy.
        steps: Of the environments in all, for each update.
        environments: Run side by side.
        horizon: Longest episode.
        model_steps: Training steps of the dynamics model for each update.
        eta: Weight of the intrinsic reward, whose unit is its recent median.
    """

    iterations: int
    steps: int = 5000
    environments: int = 10
    horizon: int = 500
    model_steps: int = 500
    eta: float = 0.01


def train(make: Callable[[], Simulation], model: DynamicsModel | None, sizes: Sizes, seed: int) -> list[float]:
    """TRPO on one task, with curiosity if there is a model.

    Returns:
        For every iteration, the mean return of its episodes under the task's own reward.
    """
    from sb3_contrib import TRPO
    from stable_baselines3.common.vec_env import DummyVecEnv

    seeds = np.random.SeedSequence(seed).generate_state(sizes.environments)
    environments = DummyVecEnv([partial(environment, make, sizes.horizon, int(own)) for own in seeds])
    observer = _observer(_Curiosity(model, sizes.eta) if model is not None else None)
    policy = {"net_arch": [POLICY_WIDTH], "activation_fn": nn.Tanh}
    with torch.random.fork_rng(devices=()):
        steps = sizes.steps // sizes.environments
        algorithm = TRPO(
            "MlpPolicy", environments, n_steps=steps, batch_size=steps, gamma=DISCOUNT, target_kl=TRUST_REGION,
            policy_kwargs=policy, seed=seed, device="cpu",
        )  # fmt: skip
        algorithm.learn(sizes.iterations * steps * sizes.environments, callback=observer)
    environments.close()
    return observer.returns


class _Curiosity:
    """The intrinsic reward: η times the information gain, in recent medians, at most ten of them."""

    def __init__(self, model: DynamicsModel, eta: float) -> None:
        self.model, self.eta = model, eta
        self.medians: deque[float] = deque(maxlen=REMEMBERED)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Of transitions; the model then learns from them."""
        gains = self.model.observe(x, y)
        self.medians.append(max(float(gains.median()), torch.finfo(gains.dtype).tiny))
        reward = self.eta * (gains / float(np.median(self.medians))).clamp_max(LARGEST)
        self.model.fit()
        return reward


def _observer(curiosity: _Curiosity | None) -> Any:
    """A callback that keeps returns and successors, and adds the intrinsic reward before the policy is updated.

    The class is made here because its base belongs to the extra ``rl``.
    """
    from stable_baselines3.common.callbacks import BaseCallback

    class Observer(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.returns: list[float] = []
            self.running: np.ndarray | None = None
            self.finished: list[float] = []
            self.successors: list[np.ndarray] = []

        def _on_step(self) -> bool:
            rewards, dones, infos = (self.locals[name] for name in ("rewards", "dones", "infos"))
            if self.running is None:
                self.running = np.zeros(len(rewards))
            self.running += rewards  # before a cut-off episode's value is added to them
            self.finished += self.running[dones].tolist()
            self.running[dones] = 0
            following = np.array(self.locals["new_obs"], copy=True)
            for number in np.flatnonzero(dones):  # the new observation is already of the next episode
                following[number] = infos[number]["terminal_observation"]
            self.successors.append(following)
            return True

        def _on_rollout_end(self) -> None:
            running = [] if self.running is None else self.running.tolist()
            self.returns.append(float(np.mean(self.finished or running)))
            buffer = self.locals["rollout_buffer"]
            if curiosity is not None:
                states = torch.from_numpy(buffer.observations).flatten(0, 1)
                actions = torch.from_numpy(buffer.actions).flatten(0, 1).clamp(-1, 1)
                changes = torch.from_numpy(np.stack(self.successors)).flatten(0, 1) - states
                reward = curiosity(torch.cat([states, actions], 1), changes)
                buffer.rewards += reward.reshape(buffer.rewards.shape).numpy()
                buffer.compute_returns_and_advantage(last_values=self.locals["values"], dones=self.locals["dones"])
            self.finished, self.successors = [], []

    return Observer()
